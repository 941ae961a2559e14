"""`.ts` files, as the UEA and UCR archives write them: labelled cases of one or more channels.

Read here and not by aeon's `load_from_ts_file`, which is no faster, and which writes all labels in
lower case, opens no .gz, takes labels that were not declared and an empty file for data, and names
no line when it fails. A test holds the numbers to aeon's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from eattn.data.files import read_bytes, stem
from eattn.data.locate import Folder, find

COMMENTS = (b"#", b"%")


@dataclass(frozen=True, eq=False)
class Cases:
    """`X` holds one array [channels, length] per case, NaN where a value is missing.

    `y` are the labels as written; numbers where the file has @targetLabel; None without either.
    `classes` are the declared labels in their order, or those found where none are declared.
    """

    X: list[NDArray[np.float64]]
    y: NDArray[Any] | None
    name: str
    classes: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        return len(self.X[0])

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([case.shape[1] for case in self.X])

    @property
    def missing(self) -> int:
        """How many values are missing."""
        return sum(int(np.isnan(case).sum()) for case in self.X)


@dataclass
class _Header:
    name: str
    labelled: bool = True  # also where nothing is said, as aeon has it
    target: bool = False
    classes: tuple[str, ...] = ()
    flags: dict[str, bool] = field(default_factory=dict)


def load_classification(
    name: str,
    split: str,
    *,
    data_dir: Folder | None = None,
    download: bool = True,
    progress: bool = False,
) -> Cases:
    """The cases of a set's split, as in `load_classification("JapaneseVowels", "train")`."""
    return read_ts(find(name, split, data_dir=data_dir, download=download, progress=progress))


def read_ts(path: str | Path) -> Cases:
    """All cases of a `.ts` file, plain or gzipped; what is wrong is named with its line."""
    reader = _Reader(Path(path))
    header = reader.header()
    X: list[NDArray[np.float64]] = []
    labels: list[str] = []
    for line in reader.lines:
        channels = line.split(":")
        if header.labelled or header.target:
            labels.append(reader.label(channels, header))
        X.append(reader.case(channels))
        reader.compare(X[0], X[-1], header)
    if not X:
        raise ValueError(f"{path} has no cases after @data")
    if header.target:
        return Cases(X, np.array(labels, dtype=np.float64), header.name)
    y = np.array(labels) if header.labelled else None
    return Cases(X, y, header.name, header.classes or tuple(sorted(set(labels))))


class _Reader:
    """The lines of a file, less comments and blank ones, and `number`, that of the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.lines = self._lines(read_bytes(path))

    def _lines(self, content: bytes) -> Iterator[str]:
        if not content.strip():
            raise ValueError(f"{self.path} is empty")
        for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
            # Comments may be in any encoding: they are dropped before they are decoded.
            if line.strip() and not line.lstrip().startswith(COMMENTS):
                self.number = number
                try:
                    yield line.decode().strip()
                except UnicodeDecodeError as error:
                    self.fail(f"not UTF-8 ({error.reason})")

    def fail(self, what: str) -> NoReturn:
        raise ValueError(f"{self.path}, line {self.number}: {what}")

    def header(self) -> _Header:
        """Read on to the line @data. Keys are known in any case; others are passed over."""
        header = _Header(stem(self.path))
        for line in self.lines:
            key, *values = line.split()
            key = key.lower()
            if key == "@data":
                return header
            if key == "@problemname" and values:
                header.name = values[0]
            elif key == "@classlabel":
                header.labelled, header.classes = self._flag(key, values), tuple(values[1:])
            elif key == "@targetlabel":
                header.target = self._flag(key, values)
                header.labelled = header.labelled and not header.target
            elif key in ("@univariate", "@equallength"):
                header.flags[key] = self._flag(key, values)
            elif key == "@timestamps" and self._flag(key, values):
                self.fail("time stamps in .ts files are not supported, only plain values")
        raise ValueError(f"{self.path} has no line @data: it is not a .ts file, or not all of one")

    def _flag(self, key: str, values: Sequence[str]) -> bool:
        value = values[0].lower() if values else ""
        if value not in ("true", "false"):
            self.fail(f"{key} must be true or false, got {value!r}")
        return value == "true"

    def label(self, channels: list[str], header: _Header) -> str:
        """Take the label off the end of a case."""
        if len(channels) < 2:
            self.fail("a case must end in ':' and its label")
        label = channels.pop().strip()
        if header.classes and label not in header.classes:
            self.fail(f"label {label!r} is not declared, those are {', '.join(header.classes)}")
        if header.target and not _is_number(label):
            self.fail(f"the target must be a number, got {label!r}")
        return label

    def case(self, channels: Sequence[str]) -> NDArray[np.float64]:
        rows = [self._values(channel, number) for number, channel in enumerate(channels, 1)]
        for number, row in enumerate(rows, 1):
            if len(row) != len(rows[0]):
                self.fail(f"channel {number} has {len(row)} values, channel 1 has {len(rows[0])}")
        case = np.array(rows)
        if np.isinf(case).any():
            row, place = np.argwhere(np.isinf(case))[0]
            self.fail(
                f"channel {row + 1}, value {place + 1} must be finite, got {case[row, place]}"
            )
        return case

    def _values(self, channel: str, number: int) -> list[float]:
        try:
            return [*map(float, channel.replace("?", "nan").split(","))]
        except ValueError:
            cells = channel.split(",")
            place = next(i for i, c in enumerate(cells) if c.strip() != "?" and not _is_number(c))
            self.fail(f"channel {number}, value {place + 1} must be a number, got {cells[place]!r}")

    def compare(
        self, first: NDArray[np.float64], case: NDArray[np.float64], header: _Header
    ) -> None:
        """Cases must have the same number of channels, and be what the header says they are."""
        if header.flags.get("@univariate") and len(case) > 1:
            self.fail(f"the header says @univariate true, this case has {len(case)} channels")
        if len(case) != len(first):
            self.fail(f"this case has {len(case)} channels, the first one has {len(first)}")
        if header.flags.get("@equallength") and case.shape != first.shape:
            self.fail(
                f"the header says @equalLength true, this case has {case.shape[1]} values per "
                f"channel, the first one has {first.shape[1]}"
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
