"""Data: found on this machine or downloaded, read with care, cut into parts and windows.

It needs numpy; tables need pandas (`pip install "eattn[timeseries]"`). Nothing here needs torch.
"""

from eattn.data.catalog import CATALOG, DataSet, look_up
from eattn.data.forecasting import Cuts, cuts, load_forecasting, windows
from eattn.data.locate import Found, cache_dir, find, get, locate
from eattn.data.tables import Table, read_table
from eattn.data.uea import Cases, load_classification, read_ts

__all__ = [
    "CATALOG",
    "Cases",
    "Cuts",
    "DataSet",
    "Found",
    "Table",
    "cache_dir",
    "cuts",
    "find",
    "get",
    "load_classification",
    "load_forecasting",
    "locate",
    "look_up",
    "read_table",
    "read_ts",
    "windows",
]
