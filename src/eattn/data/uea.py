"""Classification datasets: `.ts` files of the UEA and UCR archives.

aeon parses the values. Labels are read from the lines directly, because aeon converts them to
lower case, and errors name the line, which aeon does not report.
"""

import bisect
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eattn._checks import need
from eattn.data.files import read_bytes, stem
from eattn.data.locate import Folder, find

# The header of the file follows and overrides these; aeon assumes the opposite by default.
DEFAULTS = ("@univariate false", "@equalLength false")
Line = tuple[int, str]


@dataclass(frozen=True, eq=False)
class Cases:
    """Labelled time series of a classification dataset.

    Attributes
    ----------
    X : list of arrays, shape (channels, length)
        One float64 array per sample, with NaN for missing values.
    y : array or None
        Labels as text, numbers if the file has @targetLabel, or None without labels.
    name : str
        Name of the dataset.
    classes : tuple of str
        Labels in the order of their declaration, or sorted if they are not declared.
    """

    X: list[NDArray[np.float64]]
    y: NDArray[Any] | None
    name: str
    classes: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        """Number of channels of every sample."""
        return len(self.X[0])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of each sample."""
        return np.array([x.shape[1] for x in self.X])

    @property
    def missing(self) -> int:
        """Number of missing values."""
        return sum(int(np.isnan(x).sum()) for x in self.X)


def load_classification(
    name: str,
    split: str,
    *,
    data_dir: Folder | None = None,
    download: bool = True,
    progress: bool = False,
) -> Cases:
    """Load one split of a known classification dataset.

    Parameters
    ----------
    name : str
        Name or alias of the dataset.
    split : {"train", "test"}
        Split to load.
    data_dir : path, optional
        Folder to look in first, instead of EATTN_DATA.
    download : bool, default True
        Download a dataset that is not on this machine.
    progress : bool, default False
        Show the progress of a download on stderr.

    Returns
    -------
    Cases

    Examples
    --------
    >>> len(load_classification("JapaneseVowels", "train").X)
    270
    """
    return read_ts(find(name, split, data_dir=data_dir, download=download, progress=progress))


def read_ts(path: str | Path) -> Cases:
    """Read all samples of a `.ts` or `.ts.gz` file.

    Parameters
    ----------
    path : str or Path
        File to read.

    Returns
    -------
    Cases

    Raises
    ------
    ValueError
        If the file is invalid; the message names the file and the line.
    """
    path = Path(path)
    lines = list(_lines(path))
    end = next((i for i, (_, line) in enumerate(lines, 1) if line.lower() == "@data"), None)
    if end is None:
        raise ValueError(f"{path} has no line @data; it is truncated or not a .ts file")
    header, samples = lines[:end], lines[end:]
    if not samples:
        raise ValueError(f"{path} has no samples after @data")
    tags = {line.split()[0].lower(): line.split()[1:] for _, line in header}
    if [tag.lower() for tag in tags.get("@timestamps", ())] == [
        "true"
    ]:  # aeon drops the signs of values
        raise ValueError(f"{path}: @timeStamps true is not supported")
    X, y, meta = _parse(path, header, samples)
    if meta["univariate"] and len(X[0]) > 1:
        raise ValueError(f"{path}: @univariate is true, but samples have {len(X[0])} channels")
    name = next(iter(tags.get("@problemname", ())), stem(path))
    declared = tuple(tags.get("@classlabel", ())[1:])
    labels = []
    for x, (number, line) in zip(X, samples, strict=True):
        values, _, label = line.rpartition(":")
        labels.append(label.strip())
        if np.isinf(x).any():
            raise ValueError(f"{path}, line {number}: values must be finite, got infinity")
        if meta["classlabel"] and not values:
            raise ValueError(f"{path}, line {number}: a sample must end with ':' and its label")
        if declared and labels[-1] not in declared:
            raise ValueError(
                f"{path}, line {number}: label {labels[-1]!r} is not declared; "
                f"@classLabel declares {', '.join(declared)}"
            )
    if not meta["classlabel"]:
        return Cases(X, y if meta["targetlabel"] else None, name)
    return Cases(X, np.array(labels), name, declared or tuple(sorted(set(labels))))


def _lines(path: Path) -> Iterator[Line]:
    """Yield the numbers and texts of lines that are neither blank nor comments."""
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise ValueError(f"{path} is empty")
    for number, line in enumerate(content.splitlines(), 1):
        # Comments are not decoded, since they may have any encoding.
        if line.strip() and not line.lstrip().startswith((b"#", b"%")):
            try:
                yield number, line.decode().strip()
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason})") from error


def _parse(path: Path, header: Sequence[Line], samples: Sequence[Line]) -> Any:
    """Return X, y and metadata; errors name the line at which aeon fails."""
    load = need("aeon.datasets", extra="timeseries").load_from_ts_file

    def parse(count: int) -> Any:
        text = "\n".join([*DEFAULTS, *(line for _, line in [*header, *samples[:count]])])
        with tempfile.TemporaryDirectory() as folder:  # aeon reads only plain files
            Path(folder, "clean.ts").write_text(text, encoding="utf-8")
            return load(f"{folder}/clean.ts", return_meta_data=True)

    def fails(count: int) -> bool:
        try:
            parse(count)
        except (OSError, ValueError):
            return True
        return False

    try:
        X, y, meta = parse(len(samples))
    except (OSError, ValueError) as error:
        count = bisect.bisect_left(range(len(samples)), True, key=fails)
        where = f"{path}, line {samples[count - 1][0]}" if count else f"{path}"
        reason = re.sub(r"Error loading <.*?>\. ", "", str(error))
        raise ValueError(f"{where}: {reason}") from error
    return list(X), y, meta
