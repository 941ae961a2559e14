"""Find, download and read datasets and tables.

Reading files requires extra packages: `pip install "eattn[timeseries]"`. torch is not needed.
"""

from eattn.data.catalog import CATALOG, DataSet, look_up
from eattn.data.locate import Found, cache_dir, find, get, locate
from eattn.data.tables import Table, load_forecasting, read_table
from eattn.data.uea import Cases, load_classification, read_ts

__all__ = [
    "CATALOG",
    "Cases",
    "DataSet",
    "Found",
    "Table",
    "cache_dir",
    "find",
    "get",
    "load_classification",
    "load_forecasting",
    "locate",
    "look_up",
    "read_table",
    "read_ts",
]
