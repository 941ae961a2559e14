"""Beyond the paper: pretraining.

The pretrained weights of `EAForecaster` come from synthetic series alone. The same recipe is
repeated with other mixers in place of element-wise attention. The loss is the pinball loss of
synthetic series that no model was trained on, relative to the error of seasonal naive. Zero-shot
forecasts are made of the values before the official test parts of m1, m3 and tourism, so that
nothing is chosen on the test parts.
"""

from paper.beyond.pretraining.evaluation import TITLE, draw, losses, plan, rows, tables

__all__ = ["TITLE", "draw", "losses", "plan", "rows", "tables"]
