"""Candidates run in turn, and rows state where they come from."""

import json
import time

import pytest
import torch

from paper.harness import measure
from paper.harness.measure import Candidate, interleave, provenance, quantiles


def test_a_fast_candidate_runs_between_the_slow_ones():
    turns = []
    candidates = {
        "slow": Candidate(lambda: turns.append("slow"), warmup=0),
        "fast": Candidate(lambda: turns.append("fast"), warmup=0, share=4),
    }
    times = interleave(candidates, rounds=2)
    assert turns == ["fast", "fast", "slow", "fast", "fast"] * 2
    assert (times["slow"].runs, times["fast"].runs) == (2, 8)


def test_times_are_quantiles_of_seconds_per_call():
    times = interleave({"sleep": Candidate(lambda: time.sleep(0.02), calls=2)}, rounds=3)["sleep"]
    assert 0.01 <= times.p20 <= times.p50 <= times.p80
    assert quantiles([3.0, 1.0, 2.0]).p50 == 2.0


def test_a_candidate_runs_with_its_own_number_of_threads():
    before, seen = torch.get_num_threads(), []
    work = Candidate(lambda: seen.append(torch.get_num_threads()), threads=1, warmup=0)
    interleave({"one": work}, rounds=1)
    assert (seen, torch.get_num_threads()) == ([1], before)


def test_exponent_of_a_power_law():
    x = [1.0, 2.0, 8.0]
    assert measure.exponent(x, [3 * value**1.5 for value in x]) == pytest.approx(1.5)


def test_provenance_is_complete_and_is_json():
    row = provenance()
    assert json.loads(json.dumps(row)) == row
    wanted = {"date", "commit", "dirty", "hardware", "eattn", "torch", "python"}
    assert wanted <= set(row)
    assert row["torch"] == torch.__version__


def test_commit_of_another_repository_is_not_stored(monkeypatch, tmp_path):
    copy = tmp_path / "measure.py"
    copy.touch()
    monkeypatch.setattr(measure, "__file__", str(copy))
    row = provenance()
    assert (row["commit"], row["dirty"]) == (None, None)
