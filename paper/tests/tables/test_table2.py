"""Table 2: the datasets have the shapes that the paper gives."""

import pytest

from eattn.data import locate
from paper.harness.experiment import result
from paper.harness.runlog import RunLog
from paper.tables import table2


def test_published_rows_belong_to_the_full_plan_and_agree():
    log = RunLog(None, "table2")
    log.rows = before = result("table2").rows
    assert list(table2.rows(table2.plan(quick=False), log)) == before
    (table,) = table2.tables(before)
    assert table.notes == ["All numbers agree."]


@pytest.mark.parametrize("name", table2.PAPER["shapes"])
def test_counts_are_those_of_the_paper(name):
    if locate(name, "train") is None or locate(name, "test") is None:
        pytest.skip(f"{name} is not on this machine")
    found = table2.count(name)
    assert tuple(found[field] for field in table2.COUNTS) == table2.PAPER["shapes"][name]


def test_differences_from_the_paper_are_named():
    row = {"data": "JapaneseVowels", "series": 12, "length": 30, "labels": 9}
    (table,) = table2.tables([row | {"train": 1, "test": 2}])
    assert table.lines == [["JapaneseVowels", "12 / 12", "30 / 29", "9 / 9", "1", "2"]]
    assert table.notes == ["Different from the paper: JapaneseVowels."]
