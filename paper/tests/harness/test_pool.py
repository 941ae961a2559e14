"""Runs side by side: each key once, and the first failure stops all."""

import os

import pytest
import torch

from paper.harness.pool import run_all
from paper.harness.runlog import RunLog

KEYS = [{"what": "run", "n": n} for n in range(3)]


def square(key):
    return {"square": key["n"] ** 2, "threads": torch.get_num_threads(), "pid": os.getpid()}


def fail(key):
    raise RuntimeError(f"run {key['n']} failed")


def test_only_missing_keys_run_in_processes_of_one_thread():
    log = RunLog(None, "bench")
    log.add(KEYS[1], {"square": -1})
    rows = list(run_all(log, KEYS, square, jobs=2))
    assert sorted(row["square"] for row in rows) == [-1, 0, 4]
    new = [row for row in rows if "pid" in row]
    assert all(row["threads"] == 1 and row["pid"] != os.getpid() for row in new)
    assert [row["square"] for row in run_all(log, KEYS, fail)] == [0, -1, 4]


def test_the_first_failure_stops_all_runs():
    with pytest.raises(RuntimeError, match="failed"):
        list(run_all(RunLog(None, "bench"), KEYS, fail, jobs=1))
