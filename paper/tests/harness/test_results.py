"""RESULTS.md is what the rows say."""

import re

import pytest

from paper.harness import experiment, results
from paper.harness.experiment import PAPER


def test_results_page_follows_from_the_rows():
    text = (PAPER / "RESULTS.md").read_text(encoding="utf-8")
    assert text == results.markdown(), "run `make results`"


def test_pictures_of_the_results_page_exist():
    text = (PAPER / "RESULTS.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures
    assert all((PAPER / picture).is_file() for picture in pictures)


@pytest.mark.parametrize("name", experiment.names())
def test_every_target_has_its_verdict(name):
    found = experiment.result(name)
    text = results.markdown().partition(f"## {found.module.TITLE}\n")[2].partition("\n## ")[0]
    for verdict in found.verdicts:
        target = verdict.target
        assert f"| {target.name} | {verdict.text} | {verdict.bound} | {verdict.words} |" in text
