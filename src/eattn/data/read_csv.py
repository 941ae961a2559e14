"""CSV and parquet files as frames of what they say, with the place of each row in the file.

pandas parses the values. The shape of a CSV is checked first, because pandas fills short rows up
without a word, and because its messages count rows where a reader of the file counts lines.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn.data.files import read_bytes

if TYPE_CHECKING:
    import pandas as pd

PARQUET = (".parquet", ".pq")
DELIMITERS = ",;\t"
Place = Callable[[int], str]  # where a row of the frame is in the file


def read_rows(path: Path) -> tuple["pd.DataFrame", Place]:
    """All rows of a file, numbered from 0; a parquet file's index becomes a column."""
    return _read_parquet(path) if path.suffix in PARQUET else _read_csv(path)


def need_pandas() -> Any:
    """pandas, or an error that says what to install."""
    try:
        import pandas
    except ImportError as error:
        raise ModuleNotFoundError(
            'tables need pandas, which is not here: pip install "eattn[timeseries]"'
        ) from error
    return pandas


def check_given(what: str, values: "pd.Series[Any]", path: Path, place: Place) -> None:
    """That no cell of a column is empty which must not be."""
    missing = values.isna()
    if missing.any():
        row = place(int(missing.to_numpy().argmax()))
        raise ValueError(f"{path}, {row}: the {what} in column {values.name!r} is missing")


def _read_parquet(path: Path) -> tuple["pd.DataFrame", Place]:
    pandas = need_pandas()
    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ModuleNotFoundError(
            'parquet needs pyarrow, which is not here: pip install "eattn[timeseries]"'
        ) from error
    except ValueError as error:  # pyarrow's own are of this kind
        raise ValueError(f"{path} is not a parquet file: {error}") from error
    index = frame.index
    plain = index.name is None and not isinstance(index, pandas.DatetimeIndex)
    frame = frame.reset_index(drop=plain)
    if frame.empty:
        raise ValueError(f"{path} has no rows")
    frame.columns = [str(name) for name in frame.columns]
    return frame, lambda row: f"row {row + 1}"


def _read_csv(path: Path) -> tuple["pd.DataFrame", Place]:
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise ValueError(f"{path} is empty")
    if b"\0" in content:
        raise ValueError(f"{path} is not text; tables must be CSV or, as name.parquet, parquet")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason})") from error
    delimiter = _delimiter(content)
    lines = _check_shape(content, delimiter, path)
    pandas = need_pandas()
    try:
        frame = pandas.read_csv(
            io.BytesIO(content), sep=delimiter, na_values=["?"], low_memory=False
        )
    except pandas.errors.ParserError as error:  # such as a quote that is never closed
        raise ValueError(f"{path}: {str(error).strip()}") from error
    frame.columns = [name.strip() for name in frame.columns]
    return frame, lambda row: f"line {lines[row]}"


def _delimiter(content: bytes) -> str:
    """The most frequent in the first line; csv.Sniffer would take letters for delimiters too."""
    first = content.lstrip().splitlines()[0].decode()
    return max(DELIMITERS, key=first.count)


def _check_shape(content: bytes, delimiter: str, path: Path) -> list[int]:
    """The line of each row, all of them as wide as the header."""
    text = (line.decode() for line in content.splitlines(keepends=True))
    rows = csv.reader(text, delimiter=delimiter)
    try:
        header = [name.strip() for name in next(row for row in rows if any(row))]
        _check_header(header, path, rows.line_num)
        widths = list(_widths(content, delimiter))
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from error
    for line, width in widths:
        if width != len(header):
            raise ValueError(
                f"{path}, line {line}: {width} cells, the header names {len(header)} columns"
            )
    if len(widths) == 1:
        raise ValueError(f"{path} has a header and no rows")
    return [line for line, _ in widths[1:]]


def _widths(content: bytes, delimiter: str) -> Iterator[tuple[int, int]]:
    """The line, and the number of cells, of each row that is not blank."""
    lines = content.splitlines(keepends=True)
    if b'"' not in content:  # much faster, which is felt with the 862 columns of Traffic
        sign = delimiter.encode()
        yield from (
            (number, line.count(sign) + 1)
            for number, line in enumerate(lines, 1)
            if line.strip(b"\r\n")
        )
        return
    rows = csv.reader((line.decode() for line in lines), delimiter=delimiter)
    yield from ((rows.line_num, len(row)) for row in rows if row)


def _check_header(header: Sequence[str], path: Path, line: int) -> None:
    if len(header) < 2:
        raise ValueError(
            f"{path}, line {line} must name a time column and others, got {header[0]!r}"
        )
    if not any(name and not name[0].isdigit() for name in header):
        raise ValueError(f"{path}, line {line} must name the columns, got {', '.join(header)}")
    for number, name in enumerate(header):
        if name and name in header[:number]:
            raise ValueError(f"{path}, line {line}: two columns are called {name!r}")
