"""Peak memory of work in a separate process, within a limit, and on a GPU (a fake one)."""

import contextlib
import json
import os
import platform
import signal
import sys
import time
import types

import pytest
import torch

from paper.harness import peak

MIB = 2**20


@pytest.fixture
def trial(monkeypatch):
    """Run a function of this module in a separate process."""
    folder, _, module = __file__.removesuffix(".py").rpartition("/")
    monkeypatch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
    return lambda function, *most, **options: peak.trial(f"{module}:{function}", *most, **options)


def allocate(mebibytes: int):
    """Prepare torch and a block that must not be counted before the memory is measured."""
    ballast = torch.ones(64 * MIB // 4)
    return lambda: (ballast, torch.ones(mebibytes * MIB // 4))


def test_peak_memory_counts_the_work_and_not_its_preparation(trial):
    assert 95 * MIB < trial("allocate", mebibytes=100)["peak_bytes"] < 115 * MIB


def test_peak_memory_works_where_proc_does_not_exist(monkeypatch, tmp_path):
    with_proc = peak.high_water_mark()
    monkeypatch.setattr(peak, "STATUS", tmp_path / "none")
    monkeypatch.setattr(peak, "CLEAR_REFS", tmp_path / "none" / "either")
    peak.forget_high_water_mark()
    assert peak.high_water_mark() == pytest.approx(with_proc, rel=0.5)


def grow(mebibytes: int):
    """Allocate memory in small steps."""

    def work():
        held = []
        for _ in range(mebibytes):
            held.append(torch.ones(MIB // 4))
            torch.ones(1000, 1000).sum()
        return held

    return work


def test_work_is_stopped_when_it_exceeds_its_limit(trial):
    assert 30 * MIB < trial("grow", 128 * MIB, mebibytes=32)["peak_bytes"] < 60 * MIB
    row = trial("grow", 64 * MIB, mebibytes=5000)
    assert row == {"reason": "out of memory: more than the 0.06 GiB allowed"}


KEPT, NEW = 50_000, 80_000  # numbers in a block


def fragmented(at_once: bool):
    """Free every other block, then allocate blocks that are too large for the holes."""
    if at_once:
        peak.free_at_once()
    torch.ones(16 * MIB // 4)  # freed here: from now on glibc keeps smaller blocks in its heap

    def work():
        blocks = [torch.ones(KEPT) for _ in range(200)]
        kept = blocks[::2]
        del blocks
        return kept, [torch.ones(NEW) for _ in range(60)]

    return work


def test_blocks_that_are_freed_at_once_leave_no_fragments(trial):
    whole, holes = (trial("fragmented", at_once=x)["peak_bytes"] for x in (True, False))
    needed = 4 * 200 * KEPT  # half of it is free before the others come
    assert needed < whole + MIB
    assert whole < 1.2 * needed
    if platform.libc_ver()[0] == "glibc":
        assert holes > needed + 0.8 * 4 * 60 * NEW


class FakeGPU:
    """The part of torch.cuda that a measurement needs."""

    def __init__(self) -> None:
        self.now, self.peak, self.fraction = 100, 900, None

    def synchronize(self) -> None: ...

    def current_device(self) -> int:
        return 0

    def memory_allocated(self) -> int:
        return self.now

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.now

    def max_memory_allocated(self) -> int:
        return self.peak

    def get_device_properties(self, device: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(total_memory=1000)

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.fraction = fraction

    def work(self) -> None:
        self.peak = max(self.peak, self.now + 250)


@pytest.mark.parametrize(("most", "fraction"), [(None, None), ("400", 0.5)])
def test_gpu_memory_is_that_of_the_allocator(monkeypatch, capsys, most, fraction):
    gpu = FakeGPU()
    monkeypatch.setattr(torch, "cuda", gpu)
    monkeypatch.setattr(peak.importlib, "import_module", lambda name: gpu)
    gpu.prepare = lambda device: gpu.work
    with contextlib.suppress(SystemExit):
        peak.main("any:prepare", json.dumps({"device": "cuda"}), *([most] if most else []))
    found = json.loads(capsys.readouterr().out)
    assert found["peak_bytes"] == 250
    assert gpu.fraction == fraction


def fail(how: str):
    """Return work that does not end well."""
    return {
        "memory": lambda: torch.ones(10**15, dtype=torch.uint8),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "sleep": lambda: time.sleep(1000),
        "exit": lambda: sys.exit(3),
    }[how]


@pytest.mark.parametrize(
    ("how", "limit", "reason"),
    [
        ("memory", None, "out of memory"),
        ("kill", None, "killed by SIGKILL"),
        ("sleep", 0.5, "not done after 0.5 s"),
        ("exit", None, "died (exit 3)"),
    ],
)
def test_failed_trials_give_their_reason(trial, how, limit, reason):
    row = trial("fail", limit=limit, how=how)
    assert set(row) == {"reason"}
    assert reason in row["reason"]
