"""Files of the study in the data folder."""

import os
from pathlib import Path

from eattn.data.locate import VARIABLE


def data_file(*parts: str) -> Path:
    """Return a file or folder of the data folder, or raise if it is missing."""
    if not os.environ.get(VARIABLE):
        raise ValueError(
            f"{'/'.join(parts)} is read from the folder {VARIABLE}, which is not set; set it to"
            " the folder that contains forecasting/ and anomaly/"
        )
    path = Path(os.environ[VARIABLE], *parts)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; {VARIABLE} must contain {'/'.join(parts)}")
    return path
