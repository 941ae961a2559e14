"""Measuring: turns are spread evenly, memory is seen, rows survive and say where they come from."""

import json
import time

import pytest
import torch

from paper.bench import measure, peak
from paper.bench.measure import Contender, append_rows, interleave, provenance, quantiles

MIB = 2**20


def test_a_fast_contender_runs_between_the_slow_ones():
    turns = []
    contenders = {
        "slow": Contender(lambda: turns.append("slow"), warmup=0),
        "fast": Contender(lambda: turns.append("fast"), warmup=0, share=4),
    }
    times = interleave(contenders, rounds=2)
    assert turns == ["fast", "fast", "slow", "fast", "fast"] * 2
    assert (times["slow"].runs, times["fast"].runs) == (2, 8)


def test_times_are_quantiles_of_seconds_per_call():
    times = interleave({"sleep": Contender(lambda: time.sleep(0.02), calls=2)}, rounds=3)["sleep"]
    assert 0.01 <= times.p20 <= times.p50 <= times.p80
    assert quantiles([3.0, 1.0, 2.0]).p50 == 2.0


def test_a_contender_runs_with_its_own_number_of_threads():
    before, seen = torch.get_num_threads(), []
    work = Contender(lambda: seen.append(torch.get_num_threads()), threads=1, warmup=0)
    interleave({"one": work}, rounds=1)
    assert (seen, torch.get_num_threads()) == ([1], before)


def test_progress_is_told_of_every_run():
    ticks = []
    interleave(
        {"a": Contender(int, cost=2.0), "b": Contender(int, share=3)},
        rounds=2,
        tick=lambda name, cost: ticks.append(cost),
    )
    assert sum(ticks) == 2 * (2.0 + 3 * 1.0)


def test_exponent_of_a_power_law():
    x = [1.0, 2.0, 8.0]
    assert measure.exponent(x, [3 * value**1.5 for value in x]) == pytest.approx(1.5)


def allocate(mebibytes: int):
    """Prepared before the mark is taken: torch itself, and a block that must not be counted."""
    ballast = torch.ones(64 * MIB // 4)
    return lambda: (ballast, torch.ones(mebibytes * MIB // 4))


def die(code: int):
    raise SystemExit(code)


def test_peak_memory_counts_the_work_and_not_its_preparation(monkeypatch):
    found = measured(monkeypatch, "allocate", mebibytes=100)
    assert 95 * MIB < found < 115 * MIB


def test_a_point_that_dies_is_an_error_with_its_exit_code(monkeypatch):
    with pytest.raises(RuntimeError, match="exit 3"):
        measured(monkeypatch, "die", code=3)


def measured(monkeypatch, function: str, **kwargs) -> int:
    folder, _, module = __file__.removesuffix(".py").rpartition("/")
    monkeypatch.setenv("PYTHONPATH", folder)
    return peak.peak_extra_bytes(f"{module}:{function}", **kwargs)


def test_peak_memory_works_where_proc_does_not_exist(monkeypatch, tmp_path):
    with_proc = peak.high_water_mark()
    monkeypatch.setattr(peak, "STATUS", tmp_path / "none")
    monkeypatch.setattr(peak, "CLEAR_REFS", tmp_path / "none" / "either")
    peak.forget_high_water_mark()
    assert peak.high_water_mark() == pytest.approx(with_proc, rel=0.5)


def test_provenance_is_complete_and_is_json():
    row = provenance()
    assert json.loads(json.dumps(row)) == row
    wanted = {"date", "commit", "dirty", "hardware", "eattn", "torch", "python"}
    assert wanted <= set(row)
    assert row["torch"] == torch.__version__


def test_the_commit_of_some_other_repository_is_not_ours(monkeypatch, tmp_path):
    copy = tmp_path / "measure.py"
    copy.touch()
    monkeypatch.setattr(measure, "__file__", str(copy))
    row = provenance()
    assert (row["commit"], row["dirty"]) == (None, None)


def test_rows_are_appended_one_json_object_to_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"a": 1}])
    append_rows(path, [{"a": 2}, {"a": 3}])
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1, 2, 3]
