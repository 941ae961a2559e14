"""Checks that several packages share."""

import importlib
from typing import Any


def need(module: str, *, extra: str) -> Any:
    """Import an optional dependency, or raise an error that names the pip extra to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ModuleNotFoundError(
            f'{module} is not installed: pip install "eattn[{extra}]"', name=module
        ) from error


def need_pandas() -> Any:
    """Import pandas, or raise an error that names the pip extra to install."""
    return need("pandas", extra="timeseries")
