"""Table 2: the data have the shapes that the paper gives."""

import pytest
from numpy.testing import assert_array_equal

from eattn.data import load_classification, locate
from paper.tables.table2 import PAPER, count


@pytest.mark.parametrize("name", PAPER)
def test_data_have_the_papers_shape(name):
    if locate(name, "train") is None or locate(name, "test") is None:
        pytest.skip(f"{name} is not on this machine")
    assert count(name, download=False) == PAPER[name]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("name", "shift"), [("SCP1", 6), ("SCP2", 7)])
def test_channels_of_scp_are_one_shifted_signal(name, shift, split):
    """The archive distributes channel k as channel 0 shifted by k times `shift` samples."""
    if locate(name, split) is None:
        pytest.skip(f"{name} is not on this machine")
    data = load_classification(name, split, download=False)
    for x in data.X:
        for k in range(1, data.channels):
            assert_array_equal(x[k, : -shift * k], x[0, shift * k :])
