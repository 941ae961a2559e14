"""Read CSV and Parquet files into data frames with the line number of each row.

pandas parses the values. The separator, the encoding and the shape of a CSV file are checked first,
because pandas silently fills short rows and reports rows instead of lines.
"""

import csv
import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from eattn._checks import need, need_pandas
from eattn.data.files import read_bytes
from eattn.data.parse_numbers import MISSING

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = ",;\t|"
SAMPLE = 20  # rows that show the separator
BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a file, and their line numbers and separator if it is a CSV file."""

    frame: "pd.DataFrame"
    path: Path
    lines: Sequence[int] | None = None
    sep: str | None = None
    text: "Callable[[], pd.DataFrame] | None" = None  # reads all cells as text

    def where(self, row: int) -> str:
        """Return the position of a row: its line in a CSV file, its number in a Parquet file."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"

    def fail(self, column: str, row: int, problem: str, hint: str = "") -> NoReturn:
        """Raise a ValueError about one cell."""
        at, got = f"{self.path}, {self.where(row)}", str(self.frame[column].iloc[row])
        raise ValueError(f"{at}, column {column!r} {problem}, got {got!r}{hint}")

    def check_complete(self, column: str, meaning: str) -> None:
        """Raise if a cell of the column is empty."""
        missing = self.frame[column].isna().to_numpy()
        if missing.any():
            where = self.where(int(missing.argmax()))
            raise ValueError(f"{self.path}, {where}: the {meaning} in column {column!r} is missing")


def read_rows(
    path: Path,
    *,
    sep: str | None = None,
    encoding: str | None = None,
    is_text: Callable[[str], bool] = lambda name: False,
) -> Rows:
    """Read a CSV or Parquet file; a Parquet index becomes a column.

    Columns of a CSV file for which `is_text` is true keep their cells, such as 007, as text.
    """
    if path.suffix in (".parquet", ".pq"):
        return _read_parquet(path)
    text = decode(read_bytes(path), path, encoding)
    text, sep = _strip_sep_line(text, "\t" if sep == r"\t" else sep)  # shells pass the backslash
    sep = sep or find_separator(text.splitlines(keepends=True))
    if len(sep) != 1:
        raise ValueError(f"sep must be one character such as ',' or ';', got {sep!r}")
    pandas = need_pandas()
    try:
        header, lines = _check_shape(text, sep, path)
        kept = {name: str.strip for name in header if is_text(name.strip())}

        def load(**options: Any) -> Any:
            frame = pandas.read_csv(
                io.StringIO(text),
                sep=sep,
                na_values=list(MISSING),
                low_memory=False,
                converters=kept,
                **options,
            )
            for name in kept:
                frame[name] = frame[name].mask(frame[name] == "")
            return frame.rename(columns=str.strip)

        others = dict.fromkeys((name for name in header if name not in kept), str)
        return Rows(load(), path, lines, sep, lambda: load(dtype=others))
    except (csv.Error, pandas.errors.ParserError) as error:  # such as an unclosed quote
        raise ValueError(f"{path}: {str(error).strip()}") from error


def decode(content: bytes, path: Path, encoding: str | None = None) -> str:
    """Return the text of a file in `encoding`, by default UTF-8, UTF-16 with a mark or cp1252."""
    if not content.strip():
        raise ValueError(f"{path} is empty")
    marked = next((name for mark, name in BOMS.items() if content.startswith(mark)), None)
    if encoding is None and marked is None and b"\0" in content:
        raise ValueError(
            f"{path} is a binary file; tables must be CSV files, or Parquet files named *.parquet"
        )
    try:
        return content.decode(encoding or marked or "utf-8")
    except LookupError:
        raise ValueError(f"unknown encoding {encoding!r}; use a name such as latin-1") from None
    except UnicodeDecodeError as error:
        if encoding or marked:
            line = content[: error.start].count(b"\n") + 1
            reason = f"not {encoding or marked} ({error.reason})"
            raise ValueError(f"{path}, line {line}: {reason}") from error
    warnings.warn(
        f"{path} is not UTF-8 and was read as cp1252 (Western European);"
        " set encoding (--encoding) if names look wrong",
        stacklevel=2,
    )
    return content.decode("cp1252", errors="replace")


def find_separator(lines: Iterable[str]) -> str:
    """Return the separator that gives every row the same number of cells."""
    sample = [line for line in islice(lines, SAMPLE) if line.strip()]

    def quality(sep: str) -> tuple[bool, int]:
        widths = [len(row) for row in csv.reader(sample, delimiter=sep)]
        return len(set(widths)) == 1 and widths[0] > 1, sample[0].count(sep)

    # csv.Sniffer sometimes picks a letter as the separator.
    return max(SEPARATORS, key=quality)


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


def _strip_sep_line(text: str, sep: str | None) -> tuple[str, str | None]:
    """Blank the line `sep=;` that Excel writes at the top, and return its separator."""
    found = re.match(r'\s*"?sep=(.)"?\r?\n', text)
    return (text, sep) if found is None else ("\n" + text[found.end() :], sep or found[1])


def _check_shape(text: str, sep: str, path: Path) -> tuple[list[str], list[int]]:
    """Return the header and the line of each row; raise unless all rows match the header."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep)
    raw = next(row for row in reader if any(row))
    header = [name.strip() for name in raw]
    at = f"{path}, line {reader.line_num}"
    if len(header) < 2:
        raise ValueError(
            f"{at}: the header must name at least two columns, got {header[0]!r};"
            " set sep (--sep) if the columns have another separator"
        )
    if not any(name and not name[0].isdigit() for name in header):
        raise ValueError(f"{at}: the header must name the columns, got {', '.join(header)}")
    if twice := [name for name in header if name and header.count(name) > 1]:
        raise ValueError(f"{at}: two columns are named {twice[0]!r}")
    lines = []
    for row in reader:
        if row and len(row) != len(header):
            hint = "; a decimal comma needs another separator or quotes" if sep == "," else ""
            raise ValueError(
                f"{path}, line {reader.line_num}: expected {len(header)} cells as in the header, "
                f"got {len(row)}{hint if len(row) > len(header) else ''}"
            )
        if row:
            lines.append(reader.line_num)
    if not lines:
        raise ValueError(f"{path} has a header but no rows")
    return raw, lines
