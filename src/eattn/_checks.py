"""Argument checks and optional imports shared by several packages."""

import importlib
import math
from typing import Any


def check_size(name: str, value: int) -> int:
    """Return `value`, or raise unless it is an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def check_bool(name: str, value: bool) -> bool:
    """Return `value`, or raise unless it is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def check_number(
    name: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """Return `value`, or raise unless it is a finite number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    bounds = [
        (least, f"at least {least}", least is None or value >= least),
        (above, f"above {above}", above is None or value > above),
        (below, f"below {below}", below is None or value < below),
    ]
    if not math.isfinite(value) or not all(holds for _, _, holds in bounds):
        wanted = " and ".join(text for bound, text, _ in bounds if bound is not None)
        raise ValueError(f"{name} must be {wanted and f'{wanted}, and '}finite, got {value}")
    return value


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
