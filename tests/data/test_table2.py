"""Table 2, from the data itself."""

import pandas as pd
import pytest

from eattn.data import CATALOG, locate
from eattn.data.table2 import count, entries, frequency

PAPER = [name for name, known in CATALOG.items() if known.paper]
CASES = {  # to train and to test, as the archive says
    "JapaneseVowels": ("270", "370"),
    "SelfRegulationSCP1": ("268", "293"),
    "SelfRegulationSCP2": ("200", "180"),
    "UWaveGestureLibrary": ("120", "320"),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_data_has_the_papers_shape(name):  # Table 2
    if locate(name, "train") is None or locate(name, "test") is None:
        pytest.skip(f"{name} is not here")
    *shape, train, test = count(CATALOG[name])
    assert (train, test) == CASES[name]
    for cell in shape:
        ours, said = cell.removesuffix(")").split(" (")
        assert ours.split("–")[-1] == said


def test_every_set_has_an_entry_and_a_missing_one_says_how_to_get_it(cache):
    listed = [*entries("classification"), *entries("forecasting")]
    assert [entry.known.name for entry in listed] == list(CATALOG)
    assert [entry.where for entry in listed] == [
        f"not here: eattn data get {name}" for name in CATALOG
    ]


def test_half_a_set_is_not_here(cache):
    (cache / "BasicMotions").mkdir(parents=True)
    (cache / "BasicMotions" / "BasicMotions_TRAIN.ts").write_text("@data\n1:a\n")
    found = {entry.known.name: entry.found for entry in entries("classification")}
    assert found["BasicMotions"] is None


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([0, 15, 30], "every 15 min"),
        ([0, 60, 120], "every 1 h"),
        ([0, 1440], "every 1 d"),
        ([0, 0.5], "every 30 s"),
        ([0, 60, 120, 300], "every 1 h, 1 of 3 steps differ"),
        ([0], "one row"),
    ],
)
def test_the_step_between_rows_is_the_most_frequent(steps, said):
    assert frequency(pd.Timestamp(2020, 1, 1) + pd.Series(pd.to_timedelta(steps, "min"))) == said


def test_so_it_is_between_whole_numbers():
    assert frequency(pd.Series([1990, 1995, 2000, 2001])) == "every 5, 1 of 3 steps differ"
