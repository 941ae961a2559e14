"""Parts of the forecasting study, `paper/beyond/forecasting.py`.

Every part and every model can run alone, and several runs may share one run log one after another:

    python -m paper run forecasting --set parts=gift
    python -m paper run forecasting --set parts=gift --set tasks=ett1/H/short,hospital/M/short
    python -m paper run forecasting --set parts=mixers --set mixers=gru --set seeds=3
    python -m paper run forecasting --set parts=classics --set models=AutoARIMA --set sets=tourism
    python -m paper run forecasting --set parts=covariates --set covariates=vic_elec
    python -m paper run forecasting --set parts=anomalies --set detectors=WindowedGaussian
    python -m paper run forecasting --set parts=coverage --set streams=ett1/H

For development, the split `dev` leaves out the values of the test, and parameters of EAForecaster
can be changed; both belong into another folder than the published rows:

    python -m paper run forecasting --set parts=gift --set split=dev --set options=lr=3e-3 --out dev
"""
