"""`.ts` files: what the archives write, what people get wrong, and the same numbers as aeon."""

import gzip
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eattn.data import load_classification, read_ts

HEADER = "@problemName Toy\n@timeStamps false\n@classLabel true yes no\n@data\n"
AEON = Path(find_spec("aeon").submodule_search_locations[0], "datasets", "data")
SHIPPED = [
    "BasicMotions/BasicMotions_TRAIN.ts",
    "GunPoint/GunPoint_TEST.ts",
    "ArrowHead/ArrowHead_TRAIN.ts",
    "JapaneseVowels/JapaneseVowels_TRAIN.ts",
    "PickupGestureWiimoteZ/PickupGestureWiimoteZ_TRAIN.ts",
    "Covid3Month/Covid3Month_TRAIN.ts",
    "CardanoSentiment/CardanoSentiment_TEST.ts",
    "UnitTest/UnitTest_TRAIN.ts",
]


@pytest.fixture
def ts(tmp_path):
    def write(text: str | bytes, name: str = "toy.ts") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_cases_of_unequal_length_with_missing_values(ts):
    cases = read_ts(ts(HEADER + "1,2.5:-3,4e2:yes\n5,?,7:NaN,9,nan: no \n"))
    assert (cases.name, cases.classes, cases.channels) == ("Toy", ("yes", "no"), 2)
    assert cases.lengths.tolist() == [2, 3]
    assert cases.missing == 3
    assert_array_equal(cases.X[0], [[1, 2.5], [-3, 400]])
    assert_array_equal(cases.X[1], [[5, np.nan, 7], [np.nan, 9, np.nan]])
    assert cases.X[0].dtype == np.float64
    assert cases.y.tolist() == ["yes", "no"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
def test_comments_blank_lines_other_keys_and_line_ends(ts, end):
    text = "# caf\xe9\n% a comment\n\n@dimensions 1\nprose\n" + HEADER + "\n1,2:yes\n\n3,4:no"
    cases = read_ts(ts(text.replace("\n", end).encode("latin-1")))
    assert [case.tolist() for case in cases.X] == [[[1, 2]], [[3, 4]]]


def test_gzip_and_a_byte_order_mark_change_nothing(ts):
    text = (HEADER + "1,2:yes\n").encode()
    plain = read_ts(ts(text))
    for other in (
        ts(gzip.compress(text), "other.ts.gz"),
        ts(b"\xef\xbb\xbf" + text, "other.ts"),
    ):
        cases = read_ts(other)
        assert_array_equal(cases.X, plain.X)
        assert (cases.name, cases.y.tolist()) == (plain.name, ["yes"])


def test_labels_keep_their_case_and_keys_have_none(ts):
    text = "@PROBLEMNAME Toy\n@classlabel TRUE Yes yes\n@DATA\n1:Yes\n2:yes\n"
    assert read_ts(ts(text)).y.tolist() == ["Yes", "yes"]


def test_classes_that_are_not_declared_are_those_found(ts):
    assert read_ts(ts("@data\n1:b\n2:a\n3:b\n")).classes == ("a", "b")


def test_a_file_without_labels_has_none(ts):
    cases = read_ts(ts("@classLabel false\n@data\n1,2:3,4\n"))
    assert cases.y is None
    assert_array_equal(cases.X, [[[1, 2], [3, 4]]])


def test_targets_are_numbers(ts):
    cases = read_ts(ts("@targetLabel true\n@data\n1,2:0.5\n3,4:-1\n"))
    assert cases.y.tolist() == [0.5, -1.0]
    assert cases.classes == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "toy.ts is empty"),
        (" \n\n", "toy.ts is empty"),
        ("1,2:yes\n", "has no line @data"),
        (HEADER, "has no samples after @data"),
        (HEADER + "1,2:yes\n1,2:maybe\n", "line 6: label 'maybe' is not declared.*names yes, no"),
        (HEADER + "1,2\n", "line 5: a sample must end with ':' and its label"),
        (HEADER + "1,2:yes\n\n1,2\n", "line 7: Inconsistent number of dimensions"),
        (HEADER + "1,2:3:yes\n", "line 5: Channel 1 in case 1 has a different number of obs"),
        (HEADER + "1,2:3,4:yes\n1,2:yes\n", "line 6: .* Expecting 2 but have read 1"),
        (HEADER + "1:no\n1,2:no\n1,x4:yes\n2:no\n", "line 7: could not convert .* 'x4'"),
        (HEADER + "1,:yes\n", "line 5: could not convert string to float: ''"),
        (HEADER + "1,2:-inf,3:yes\n", "line 5: values must be finite, got infinity"),
        ("@timeStamps true\n@data\n(0,1):a\n", "@timeStamps true is not supported"),
        ("@univariate\n@data\n1:a\n", "toy.ts: @univariate tag requires a boolean value"),
        ("@univariate true\n@data\n1:2:a\n", "@univariate is true, but samples have 2 channels"),
        ("@equalLength true\n@data\n1:a\n1,2:a\n", "line 4: .*Saw 1 in the first channel but 2"),
        ("@targetLabel true\n@data\n1,2:high\n", "line 3: could not convert .*'high'"),
        (b"@data\n1:caf\xe9\n", "line 2: not UTF-8"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value[-30:],
)
def test_what_is_wrong_is_named_with_its_line(ts, text, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        read_ts(ts(text))
    assert "toy.ts" in str(caught.value)


def test_a_truncated_gzip_file_is_named(ts):
    packed = gzip.compress((HEADER + "1,2:yes\n" * 99).encode())
    with pytest.raises(ValueError, match=r"toy.ts.gz is not a complete gzip file"):
        read_ts(ts(packed[:-20], "toy.ts.gz"))
    with pytest.raises(ValueError, match=r"toy.ts.gz is not a complete gzip file"):
        read_ts(ts(HEADER, "toy.ts.gz"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        read_ts(tmp_path / "none.ts")
    assert str(caught.value.filename).endswith("none.ts")


@pytest.mark.parametrize("file", SHIPPED)
def test_the_numbers_are_those_aeon_reads(file):
    from aeon.datasets import load_from_ts_file

    X, y = load_from_ts_file(str(AEON / file))
    cases = read_ts(AEON / file)
    assert len(cases.X) == len(X)
    for case, expected in zip(cases.X, X, strict=True):
        assert_array_equal(case, expected)
    if cases.classes:
        assert [label.lower() for label in cases.y] == list(y)
        assert set(cases.y) <= set(cases.classes)
    else:
        assert_array_equal(cases.y, y)


def test_a_set_by_name():
    cases = load_classification("JAP", "train")
    assert (len(cases.X), cases.channels, len(cases.classes)) == (270, 12, 9)


@pytest.mark.skipif("EATTN_DATA" not in os.environ, reason="EATTN_DATA is not set")
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("name", "shift"), [("SCP1", 6), ("SCP2", 7)])
def test_the_channels_of_scp_are_one_signal_shifted(name, shift, split):
    """Channel k is channel 0 shifted by 6k samples (SCP2: 7k): so the archive distributes them."""
    cases = load_classification(name, split, download=False)
    for case in cases.X:
        for k in range(1, cases.channels):
            assert_array_equal(case[k, : -shift * k], case[0, shift * k :])
