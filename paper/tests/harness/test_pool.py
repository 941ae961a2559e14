"""Runs side by side: each key once, and the first failure stops all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import paper
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


def wait(key):
    Path(key["file"]).write_text(str(os.getpid()))
    while True:
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_sigterm_stops_all_runs(tmp_path):
    file = tmp_path / "pid"
    key = {"what": "run", "file": str(file)}
    code = f"import test_pool as t; list(t.run_all(t.RunLog(None, 'bench'), [{key}], t.wait))"
    paths = [str(Path(__file__).parent), str(Path(paper.__file__).parents[1])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=env)
    while not (file.exists() and file.read_text()):
        assert parent.poll() is None
        time.sleep(0.02)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait() == 128 + signal.SIGTERM
    while alive(int(file.read_text())):
        time.sleep(0.02)
