"""RESULTS.md follows from the rows."""

import re

from paper.harness import experiment, results
from paper.harness.experiment import PAPER

PAGE = (PAPER / "RESULTS.md").read_text(encoding="utf-8")


def test_results_page_follows_from_the_rows():
    assert results.markdown() == PAGE, "run `make results`"


def test_pictures_of_the_results_page_exist():
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", PAGE)
    assert pictures
    assert all((PAPER / picture).is_file() for picture in pictures)


def test_every_target_has_its_verdict():
    for found in map(experiment.result, experiment.names()):
        text = PAGE.partition(f"## {found.module.TITLE}\n")[2].partition("\n## ")[0]
        for verdict in found.verdicts:
            target = verdict.target
            assert f"| {target.name} | {verdict.text} | {verdict.bound} | {verdict.words} |" in text
