"""Parts of the forecasting study, `paper/beyond/forecasting.py`."""
