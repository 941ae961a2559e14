"""Peak memory of work in a process of its own, within a limit, and on a GPU (a fake one)."""

import contextlib
import json
import os
import platform
import signal
import time
import types

import pytest
import torch

from paper.harness import peak

MIB = 2**20


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


def grow(mebibytes: int):
    """Takes memory a little at a time, then says how far it came."""

    def work():
        held = []
        for _ in range(mebibytes):
            held.append(torch.ones(MIB // 4))
            torch.ones(1000, 1000).sum()
        return held

    return work


def watched(monkeypatch, most: int, **options) -> dict:
    folder, _, module = __file__.removesuffix(".py").rpartition("/")
    monkeypatch.setenv("PYTHONPATH", folder)
    return peak.trial(f"{module}:grow", most, **options)


def test_what_stays_within_its_room_is_measured(monkeypatch):
    row = watched(monkeypatch, mebibytes=32, most=128 * MIB)
    assert 30 * MIB < row["peak_bytes"] < 60 * MIB


def test_what_takes_more_is_stopped_and_says_how_much(monkeypatch):
    row = watched(monkeypatch, mebibytes=5000, most=64 * MIB)
    assert row == {"reason": "out of memory: more than the 0.06 GiB allowed"}


KEPT, NEW = 50_000, 80_000  # numbers in a block


def fragmented(at_once: bool):
    """Every other block goes, and those that come are too large for the holes."""
    if at_once:
        peak.free_at_once()
    torch.ones(16 * MIB // 4)  # freed here: from now on glibc keeps what is smaller in its heap

    def work():
        blocks = [torch.ones(KEPT) for _ in range(200)]
        kept = blocks[::2]
        del blocks
        return kept, [torch.ones(NEW) for _ in range(60)]

    return work


def test_blocks_that_are_freed_at_once_leave_no_fragments(monkeypatch):
    folder, _, module = __file__.removesuffix(".py").rpartition("/")
    monkeypatch.setenv("PYTHONPATH", folder)
    whole, holes = (
        peak.peak_extra_bytes(f"{module}:fragmented", at_once=at_once) for at_once in (True, False)
    )
    needed = 4 * 200 * KEPT  # half of it is free before the others come
    assert needed < whole + MIB
    assert whole < 1.2 * needed
    if platform.libc_ver()[0] == "glibc":
        assert holes > needed + 0.8 * 4 * 60 * NEW


class FakeGPU:
    """As much of torch.cuda as a measurement needs."""

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
def test_on_a_gpu_memory_is_the_allocators(monkeypatch, capsys, most, fraction):
    gpu = FakeGPU()
    monkeypatch.setattr(torch, "cuda", gpu)
    monkeypatch.setattr(peak.importlib, "import_module", lambda name: gpu)
    gpu.prepare = lambda device: gpu.work
    with contextlib.suppress(SystemExit):
        peak.main("any:prepare", json.dumps({"device": "cuda"}), *([most] if most else []))
    found = json.loads(capsys.readouterr().out)
    assert found["peak_bytes"] == 250
    assert gpu.fraction == fraction


def greedy():
    return lambda: torch.ones(10**15, dtype=torch.uint8)


def killed():
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def asleep():
    return lambda: time.sleep(1000)


@pytest.mark.parametrize(
    ("function", "limit", "reason"),
    [
        ("greedy", None, "out of memory"),
        ("killed", None, "killed by SIGKILL"),
        ("asleep", 0.5, "not done after 0.5 s"),
    ],
)
def test_a_trial_that_fails_gives_its_reason(monkeypatch, function, limit, reason):
    folder, _, module = __file__.removesuffix(".py").rpartition("/")
    monkeypatch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
    row = peak.trial(f"{module}:{function}", limit=limit)
    assert set(row) == {"reason"}
    assert reason in row["reason"]
