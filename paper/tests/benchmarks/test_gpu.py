"""The benchmark of the GPU kernels: on a GPU it measures, without one it raises."""

import pytest
import torch

from eattn.ops import backends
from eattn.ops.triton.configs import is_fused
from paper.benchmarks import gpu
from paper.harness.runlog import RunLog

TINY = gpu.Plan(shapes=((1, 4096, 64),), dtypes=("float32",), rounds=2, calls=2)
WHY_NOT = backends()["triton"]


@pytest.mark.parametrize("shapes", [gpu.Plan().shapes, gpu.CHECKED], ids=["timed", "checked"])
def test_both_kinds_of_kernels_are_covered(shapes):
    assert {is_fused(B, L, L, D, gpu.EA) for B, L, D in shapes} == {False, True}


@pytest.mark.skipif(WHY_NOT is None, reason="there is a GPU")
def test_without_a_gpu_the_reason_is_raised():
    with pytest.raises(ValueError, match="the GPU kernels cannot run: "):
        next(gpu.rows(TINY, RunLog(None, "gpu")))


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_wrong_kernels_are_not_timed(monkeypatch, factor):
    def kernels(*qkv, backend, **options):
        assert backend == "triton"
        y = gpu.reference.ea_expanded(*(x.float() for x in qkv), **options)
        return (y * factor).to(qkv[0].dtype)

    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "CHECKED", ((1, 7, 3),))
    monkeypatch.setattr(gpu, "ea_series", kernels)
    if factor == 1.0:
        assert gpu.check()["error"] < 1
    else:
        with pytest.raises(RuntimeError, match="nothing is timed"):
            gpu.check()


def test_times_are_compared_with_the_streaming_limit():
    common = {"gpu": "made up", "shape": [1, 8, 4], "dtype": "float32", "what": "forward"}
    rows = [common | {"who": who, "p50": p50} for who, p50 in (("limit", 2e-3), ("triton", 3e-3))]
    (table,) = gpu.tables(rows)
    assert table.lines[1][1:] == ["forward, triton", "`[1, 8, 4]`", "float32", "3 ms", "1.50"]


@pytest.mark.gpu
@pytest.mark.skipif(WHY_NOT is not None, reason=f"triton: {WHY_NOT}")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_every_row_is_measured_once(tmp_path):
    log = RunLog(tmp_path / "gpu.jsonl", "gpu")
    rows = list(gpu.rows(TINY, log))
    assert rows[0]["what"] == "correctness"
    assert {(row["what"], row["who"]) for row in rows[1:]} >= {
        ("forward", "limit"),
        ("forward", "triton"),
        ("forward+backward", "triton"),
        ("step", "graph"),
    }
    assert all(0 < row["p20"] <= row["p50"] <= row["p80"] for row in rows[1:])
    assert list(gpu.rows(TINY, RunLog(log.path, "gpu"))) == rows
