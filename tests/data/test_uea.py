"""`.ts` files: formats of the archives, and errors that name the line."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eattn.data import load_classification, read_ts

HEADER = "@problemName Toy\n@timeStamps false\n@classLabel true yes no\n@data\n"


@pytest.fixture
def ts(tmp_path):
    def write(text: str | bytes, name: str = "toy.ts") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_samples_may_have_unequal_lengths_and_missing_values(ts):
    samples = read_ts(ts(HEADER + "1,2.5:-3,4e2:yes\n5,?,7:NaN,9,nan: no \n"))
    assert (samples.name, samples.classes, samples.channels) == ("Toy", ("yes", "no"), 2)
    assert samples.lengths.tolist() == [2, 3]
    assert samples.missing == 3
    assert_array_equal(samples.X[0], [[1, 2.5], [-3, 400]])
    assert_array_equal(samples.X[1], [[5, np.nan, 7], [np.nan, 9, np.nan]])
    assert samples.X[0].dtype == np.float64
    assert samples.y.tolist() == ["yes", "no"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
def test_comments_blank_lines_and_unknown_tags_are_skipped(ts, end):
    text = "# caf\xe9\n% a comment\n\n@dimensions 1\nprose\n" + HEADER + "\n1,2:yes\n\n3,4:no"
    samples = read_ts(ts(text.replace("\n", end).encode("latin-1")))
    assert [x.tolist() for x in samples.X] == [[[1, 2]], [[3, 4]]]


def test_gzip_and_byte_order_mark_do_not_matter(ts):
    text = (HEADER + "1,2:yes\n").encode()
    plain = read_ts(ts(text))
    for other in (ts(gzip.compress(text), "other.ts.gz"), ts(b"\xef\xbb\xbf" + text, "other.ts")):
        samples = read_ts(other)
        assert_array_equal(samples.X, plain.X)
        assert (samples.name, samples.y.tolist()) == (plain.name, ["yes"])


def test_labels_keep_their_case_and_tags_ignore_it(ts):
    text = "@PROBLEMNAME Toy\n@classlabel TRUE Yes yes\n@DATA\n1:Yes\n2:yes\n"
    assert read_ts(ts(text)).y.tolist() == ["Yes", "yes"]


@pytest.mark.parametrize(
    ("text", "y", "classes"),
    [
        ("@data\n1:b\n2:a\n3:b\n", ["b", "a", "b"], ("a", "b")),  # no classes are declared
        ("@classLabel false\n@data\n1,2:3,4\n", None, ()),
        ("@targetLabel true\n@data\n1,2:0.5\n3,4:-1\n", [0.5, -1.0], ()),
    ],
)
def test_labels_may_be_undeclared_missing_or_numbers(ts, text, y, classes):
    samples = read_ts(ts(text))
    assert samples.classes == classes
    assert (samples.y if y is None else samples.y.tolist()) == y


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "toy.ts is empty"),
        (" \n\n", "toy.ts is empty"),
        ("1,2:yes\n", "has no line @data"),
        (HEADER, "has no samples after @data"),
        (HEADER + "1,2:yes\n1,2:maybe\n", "line 6: label 'maybe' is not .*declares yes, no"),
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
def test_errors_name_the_line(ts, text, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        read_ts(ts(text))
    assert "toy.ts" in str(caught.value)


def test_truncated_gzip_file_raises(ts):
    packed = gzip.compress((HEADER + "1,2:yes\n" * 99).encode())
    for content in (packed[:-20], HEADER):
        with pytest.raises(ValueError, match=r"toy.ts.gz is not a complete gzip file"):
            read_ts(ts(content, "toy.ts.gz"))


def test_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.ts"):
        read_ts(tmp_path / "none.ts")


def test_known_dataset_is_loaded_by_name():
    samples = load_classification("JAP", "train")
    assert (len(samples.X), samples.channels, len(samples.classes)) == (270, 12, 9)
