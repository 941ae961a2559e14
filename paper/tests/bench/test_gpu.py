"""`eattn bench gpu`: on a card it measures, without one it says why not."""

import io

import pytest
import torch
from rich.console import Console

from eattn.ops import backends
from eattn.ops.triton.configs import is_fused
from paper.bench import gpu

SMALL = gpu.Plan(shapes=((1, 4096, 64),), dtypes=("float32",), rounds=2, calls=2)


def test_the_benchmark_measures_both_ways_of_cutting():
    assert {is_fused(B, L, L, D, 7) for B, L, D in gpu.Plan().shapes} == {False, True}


def test_both_are_checked_before_they_are_timed():
    assert {is_fused(B, L, L, D, 7) for B, L, D in gpu.CHECKED} == {False, True}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_there_is_nothing_to_measure():
    with pytest.raises(ValueError, match="nothing to measure: "):
        gpu.run(SMALL, Console(file=io.StringIO()))


@pytest.mark.gpu
@pytest.mark.skipif(backends()["triton"] is not None, reason=f"triton: {backends()['triton']}")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card")
def test_every_row_is_measured_and_judged_by_its_bytes(tmp_path):
    console = Console(width=160, file=io.StringIO())
    rows = gpu.run(SMALL, console, tmp_path / "gpu.jsonl")
    assert rows[0]["what"] == "correctness"
    assert {(row["what"], row["who"]) for row in rows[1:]} >= {
        ("forward", "limit"),
        ("forward", "triton"),
        ("forward+backward", "triton"),
        ("step", "graph"),
    }
    assert all(0 < row["p20"] <= row["p50"] <= row["p80"] for row in rows[1:])
    assert "GB/s" in console.file.getvalue()
