"""One report of everything, for all tests that look at it."""

import shutil
from pathlib import Path

import pytest
import report_rows_helpers as made

from eattn import cli

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Path:
    """What is published, and made-up rows of the tables that take hours."""
    folder = tmp_path_factory.mktemp("results")
    for path in RESULTS.glob("*.jsonl"):
        shutil.copy(path, folder)
    for name, rows in made.TAKE_HOURS.items():
        made.write(folder / f"{name}.jsonl", rows())
    return folder


@pytest.fixture(scope="session")
def report(results, tmp_path_factory) -> Path:
    """The page of all of it, as the command writes it."""
    out = tmp_path_factory.mktemp("report")
    assert cli.main(["report", "--results", str(results), "--out", str(out)]) == 0
    return out / "report.html"
