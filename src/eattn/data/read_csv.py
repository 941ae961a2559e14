"""Read CSV and Parquet files into data frames with the line number of each row.

pandas parses the values. The shape of a CSV file is checked first, because pandas silently fills
short rows and reports rows instead of lines.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from eattn._checks import need, need_pandas
from eattn.data.files import read_bytes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a file, and their line numbers if it is a CSV file."""

    frame: "pd.DataFrame"
    path: Path
    lines: Sequence[int] | None = None

    def where(self, row: int) -> str:
        """Return the position of a row: its line in a CSV file, its number in a Parquet file."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"

    def fail(self, column: str, row: int, wanted: str) -> NoReturn:
        """Raise a ValueError about one cell."""
        got = str(self.frame[column].iloc[row])
        raise ValueError(
            f"{self.path}, {self.where(row)}, column {column!r} must be {wanted}, got {got!r}"
        )

    def check_complete(self, column: str, meaning: str) -> None:
        """Raise if a cell of the column is empty."""
        missing = self.frame[column].isna().to_numpy()
        if missing.any():
            where = self.where(int(missing.argmax()))
            raise ValueError(f"{self.path}, {where}: the {meaning} in column {column!r} is missing")


def read_rows(path: Path) -> Rows:
    """Read a CSV or Parquet file; a Parquet index becomes a column."""
    return _read_parquet(path) if path.suffix in (".parquet", ".pq") else _read_csv(path)


def _read_parquet(path: Path) -> Rows:
    pandas = need_pandas()
    need("pyarrow", extra="timeseries")
    try:
        frame = pandas.read_parquet(path)
    except ValueError as error:  # the base of pyarrow's errors
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    named = frame.index.name is not None or isinstance(frame.index, pandas.DatetimeIndex)
    frame = frame.reset_index(drop=not named)
    if frame.empty:
        raise ValueError(f"{path} has no rows")
    return Rows(frame.rename(columns=str), path)


def _read_csv(path: Path) -> Rows:
    pandas = need_pandas()
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise ValueError(f"{path} is empty")
    if b"\0" in content:
        raise ValueError(
            f"{path} is a binary file; tables must be CSV files, or Parquet files named *.parquet"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason})") from error
    # csv.Sniffer sometimes picks a letter as the delimiter.
    delimiter = max(",;\t", key=text.lstrip().splitlines()[0].count)
    try:
        lines = _check_shape(text, delimiter, path)
        frame = pandas.read_csv(io.StringIO(text), sep=delimiter, na_values=["?"], low_memory=False)
    except (csv.Error, pandas.errors.ParserError) as error:  # such as an unclosed quote
        raise ValueError(f"{path}: {str(error).strip()}") from error
    return Rows(frame.rename(columns=str.strip), path, lines)


def _check_shape(text: str, delimiter: str, path: Path) -> list[int]:
    """Return the line of each row; raise unless the header is valid and all rows match it."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header = [name.strip() for name in next(row for row in reader if any(row))]
    at = f"{path}, line {reader.line_num}"
    if len(header) < 2:
        raise ValueError(f"{at}: the header must name at least two columns, got {header[0]!r}")
    if not any(name and not name[0].isdigit() for name in header):
        raise ValueError(f"{at}: the header must name the columns, got {', '.join(header)}")
    if twice := [name for name in header if name and header.count(name) > 1]:
        raise ValueError(f"{at}: two columns are named {twice[0]!r}")
    lines = []
    for row in reader:
        if row and len(row) != len(header):
            raise ValueError(
                f"{path}, line {reader.line_num}: expected {len(header)} cells as in the header, "
                f"got {len(row)}"
            )
        if row:
            lines.append(reader.line_num)
    if not lines:
        raise ValueError(f"{path} has a header but no rows")
    return lines
