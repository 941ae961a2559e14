"""Parse numbers with decimal commas, thousands separators, currency and per cent signs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eattn._checks import need_pandas

if TYPE_CHECKING:
    import pandas as pd

# Cells for a missing value, besides those that pandas knows, such as NaN and N/A.
MISSING = ("?", "-", "--", "–", "—")
CURRENCY = "[$€£¥₹₽₩₺]|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|BRL"
SIGNS = re.compile(rf"^([+-]?)\s*(?:{CURRENCY})?\s*(.*?)\s*(?:{CURRENCY}|%)?$")
SPACES = re.compile(r"(?<=\d)[\s'’_](?=\d{3}(?!\d))")  # \s includes non-breaking spaces


@dataclass(frozen=True)
class Marks:
    """Decimal mark and thousands separator."""

    decimal: str
    thousands: str

    def pattern(self) -> str:
        """Return a regular expression of the numbers that are written with these marks."""
        point, group = re.escape(self.decimal), re.escape(self.thousands)
        whole = rf"\d+|[1-9]\d{{0,2}}(?:{group}\d{{3}})+"
        return rf"[+-]?(?:(?:{whole})(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?"


ENGLISH, EUROPEAN = Marks(".", ","), Marks(",", ".")


def choose_marks(
    columns: Sequence["pd.Series[Any]"],
    decimal: str | None = None,
    thousands: str | None = None,
    like: str | None = None,
) -> Marks:
    """Return the marks of a file from its text columns; raise if both readings fit.

    `decimal` and `thousands` are given by the user. `like` is the decimal mark of earlier data,
    which decides if the file does not.
    """
    if decimal is not None or thousands is not None:
        decimal = decimal or ("," if thousands == "." else ".")
        return _check_marks(Marks(decimal, thousands or ("." if decimal == "," else ",")))
    example: dict[Marks, tuple[str, str]] = {}  # a cell that only this reading explains
    either = None
    for column in columns:
        cells, _ = _clean(column.dropna())
        fits = {marks: cells.str.fullmatch(marks.pattern()) for marks in (ENGLISH, EUROPEAN)}
        for marks, other in ((ENGLISH, EUROPEAN), (EUROPEAN, ENGLISH)):
            only = (fits[marks] & ~fits[other]).to_numpy(bool)
            if only.any():
                example.setdefault(marks, (str(column.name), cells.iloc[int(only.argmax())]))
        marked = cells[fits[ENGLISH] & fits[EUROPEAN] & cells.str.contains("[.,]")]
        if len(marked) and either is None:
            either = str(column.name), marked.iloc[0]
    if len(example) == 2:
        (name, cell), (other_name, other_cell) = example[ENGLISH], example[EUROPEAN]
        raise ValueError(
            f"column {name!r} has {cell!r} and column {other_name!r} has {other_cell!r}, so the"
            " decimal mark is not clear; set decimal (--decimal)"
        )
    if example:
        return next(iter(example))
    if either is not None and like is not None:
        return EUROPEAN if like == "," else ENGLISH
    if either is not None:
        name, cell = either
        mark = next(mark for mark in cell if mark in ".,")
        raise ValueError(
            f"column {name!r}: {cell!r} can mean {cell.replace(mark, '')} or"
            f" {cell.replace(mark, '.')}; set thousands (--thousands {mark}) or decimal"
            f" (--decimal {mark})"
        )
    return ENGLISH


def parse_numbers(values: "pd.Series[Any]", marks: Marks = ENGLISH) -> "pd.Series[Any]":
    """Return float64 numbers, with NaN for missing values and for cells that are not numbers.

    A per cent sign is dropped, so that 5 % is 5. A cell with another currency than the first one,
    or without the per cent sign that others have, is not a number.
    """
    pandas = need_pandas()
    if not (pandas.api.types.is_object_dtype(values) or pandas.api.types.is_string_dtype(values)):
        return pandas.to_numeric(values, errors="coerce").astype("float64")
    cells, units = _clean(values.astype("string"))
    plain = cells.where(cells.str.fullmatch(marks.pattern()).fillna(False))
    plain = plain.str.replace(marks.thousands, "", regex=False)
    plain = plain.str.replace(marks.decimal, ".", regex=False)
    numbers = pandas.to_numeric(plain, errors="coerce").astype("float64")
    used = units[numbers.notna() & (units != "")]
    if len(used):
        same = units == used.iloc[0]
        zero = (units == "") & (used.iloc[0] != "%")
        numbers = numbers.where(same | zero)
    return numbers


def _clean(values: "pd.Series[Any]") -> "tuple[pd.Series[Any], pd.Series[Any]]":
    """Return the cells without signs and spaces between digits, and the sign of each cell."""
    text = values.astype("string").str.strip().str.replace("−", "-", regex=False)
    # Accountants write negative numbers in parentheses.
    text = text.str.replace(r"^\((.*)\)$", r"-\1", regex=True)
    units = text.str.extract(rf"({CURRENCY}|%)", expand=False).fillna("")
    cells = text.str.replace(SIGNS, r"\1\2", regex=True).str.replace(SPACES, "", regex=True)
    return cells, units


def _check_marks(marks: Marks) -> Marks:
    for name, mark in (("decimal", marks.decimal), ("thousands", marks.thousands)):
        if len(mark) != 1 or mark.isalnum() or mark in "+-":
            raise ValueError(f"{name} must be one character such as '.' or ',', got {mark!r}")
    if marks.decimal == marks.thousands:
        raise ValueError(f"decimal and thousands must differ, both are {marks.decimal!r}")
    return marks
