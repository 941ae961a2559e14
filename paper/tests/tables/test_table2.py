"""Table 2: the data have the shapes that the paper gives."""

import pytest

from eattn.data import locate
from paper.tables.table2 import PAPER, count


@pytest.mark.parametrize("name", PAPER)
def test_data_have_the_papers_shape(name):
    if locate(name, "train") is None or locate(name, "test") is None:
        pytest.skip(f"{name} is not on this machine")
    assert count(name, download=False) == PAPER[name]
