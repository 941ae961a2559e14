"""The Triton backend without a GPU: reasons why it cannot run, and interpreted kernels.

Triton chooses the interpreter when a kernel is defined, so the tests of every backend run in
another process here. On a GPU they run directly: `pytest -m gpu`.
"""

import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eattn import Quadrature, Taylor, backends, ea_series
from eattn.ops import triton
from eattn.ops.backends import BY_NAME, choose
from eattn.ops.triton import configs

TESTS = Path(__file__).parents[1]
installed = pytest.mark.skipif(triton.unavailable() is not None, reason=str(triton.unavailable()))
# It turns `a & b` of two conditions into integers, and then rejects them as a mask.
broken = triton.version() == (3, 9)
interpretable = pytest.mark.skipif(broken, reason="the interpreter of Triton 3.9 is broken")
splits = pytest.mark.parametrize("split", ["chunks", "fused"])


def interpreted(*arguments: str, split: str = "chunks") -> int:
    """Run pytest with interpreted kernels; no test may fail. Return the number of passed tests."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",  # with a GPU, tests would create tensors on it
        "HIP_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "interpreted_helpers", "--split", split]
    command += ["-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = done.stdout.strip().splitlines()[-1]
    passed = re.match(r"(\d+) passed", summary)
    assert passed and "skipped" not in summary, summary
    return int(passed.group(1))


REFERENCE = "test_series_backends.py::test_backend_matches_reference"
PACKED = "test_series_backends.py::test_packed_sequences_match_reference"
DECAY = "test_series_backends.py::test_decay_matches_reference"
DISTANT = "test_large_query_with_zero_and_distant_key_matches_reference"
# One call of each kind, with both ways of splitting: the test, and the parameters of its case.
CHOSEN = {
    "chunks": [
        (REFERENCE, "-(2, 7, 3)-float32-6-causal-"),
        (REFERENCE, "mask-(2, 7, 3)-float64-6-causal-"),
        (REFERENCE, "state-(2, 7, 3)-bfloat16-6-full-"),
        (REFERENCE, "state-(2, 7, 3)-float64-q9-causal-"),
        (REFERENCE, "mask-(2, 7, 3)-float16-q9-full-"),
        (PACKED, "packed mask state-(1, 37, 3)-float64-0-causal-"),
        (PACKED, "packed-(1, 37, 3)-float32-0-full-"),
        (DECAY, "gate mask state-(2, 7, 3)-float64-6-"),
        (DECAY, "gate mask state-(2, 7, 3)-float32-q25r12-"),
        ("test_series_backends.py::test_cross_attention_matches_reference", "mask state-1-6-"),
        ("test_series_backends.py::test_empty_inputs_give_empty_outputs", "(2, 0, 3)-causal-"),
        ("test_properties.py::test_first_output_is_the_first_value", "6-"),
        (f"test_stability.py::{DISTANT}", "16-100-causal-"),
        ("test_quadrature.py::test_far_query_reads_the_nearest_keys", "q25-causal-"),
        ("test_quadrature.py::test_gradient_pulls_keys_back_onto_the_grid", ""),
    ],
    "fused": [
        (REFERENCE, "state-(2, 7, 3)-float64-6-causal-"),
        (REFERENCE, "mask-(2, 7, 3)-float32-6-full-"),
        (DECAY, "decay state-(2, 7, 3)-float32-q9-"),
        (PACKED, "packed mask state-(1, 37, 3)-float64-0-causal-"),
    ],
}
FILES = ["series_backends", "quadrature", "stability", "properties", "forms", "integration"]
# The fused forward differs from the chunked one in its sums, not in its loads and stores.
FEWER = {"chunks": "triton", "fused": "triton and not (bfloat16 or float16 or float64)"}


@installed
@interpretable
@splits
def test_chosen_calls_match_reference_when_interpreted(split):
    cases = [f"{TESTS / 'ops' / test}[{case}triton]" for test, case in CHOSEN[split]]
    if split == "chunks":
        worker = TESTS / "ops" / "triton_worker.py"
        steps = ("-float32-6", "gate-float32-6", "-float32-q25r12")
        cases += [f"{worker}::test_steps_match_reference[{step}]" for step in steps]
        cases.append(f"{worker}::test_far_queries_match_reference[mask causal-q25r12]")
    assert interpreted(*cases, split=split) == len(cases)


@pytest.mark.full
@installed
@interpretable
@splits
@pytest.mark.parametrize("file", FILES)
def test_all_backend_tests_pass_when_interpreted(file, split):
    interpreted(str(TESTS / "ops" / f"test_{file}.py"), "-k", FEWER[split], split=split)


@pytest.mark.full
@installed
@interpretable
def test_decoding_works_when_interpreted():
    interpreted(str(TESTS / "ops" / "triton_worker.py"))


def test_missing_triton_error_suggests_pip_install(monkeypatch):
    monkeypatch.setattr(triton.util, "find_spec", lambda name: None)
    why = triton.unavailable()
    assert why == 'Triton is not installed: pip install "eattn[gpu]"'
    set_backend(monkeypatch, why_not=why)
    x = torch.zeros(1, 4, 3)
    with pytest.raises(ValueError, match="backend 'triton' cannot run here: " + re.escape(why)):
        ea_series(x, x, x, backend="triton")
    on_gpu = torch.empty(1, 4, 3, device="meta").as_subclass(OnGpu)
    assert choose(None, on_gpu, Taylor(6)).name == "eager"


class OnGpu(torch.Tensor):
    """Reports that it is on a GPU."""

    device = torch.device("cuda")


def set_backend(monkeypatch, **changes):
    monkeypatch.setitem(BY_NAME, "triton", replace(BY_NAME["triton"], **changes))


def test_only_gpu_tensors_choose_triton(monkeypatch):
    set_backend(monkeypatch, why_not=None, device="cuda")
    assert choose(None, torch.empty(1, 4, 3).as_subclass(OnGpu), Taylor(6)).name == "triton"
    x = torch.zeros(1, 4, 3)
    assert choose(None, x, Taylor(6)).name != "triton"
    with pytest.raises(ValueError, match="it runs on a CUDA or ROCm device, and q is on cpu"):
        ea_series(x, x, x, backend="triton")


def test_grids_above_65_nodes_do_not_choose_triton(monkeypatch):
    set_backend(monkeypatch, why_not=None, device="cuda")
    on_gpu = torch.empty(1, 4, 3).as_subclass(OnGpu)
    assert choose(None, on_gpu, Quadrature(65)).name == "triton"
    assert choose(None, on_gpu, Quadrature(67)).name == "eager"
    with pytest.raises(ValueError, match="it supports at most 65 nodes, and the expansion has 67"):
        choose("triton", on_gpu, Quadrature(67))


@pytest.mark.parametrize(("version", "old"), [("3.3.1", True), ("3.4.0", False), ("4.0", False)])
def test_too_old_triton_version_is_rejected(monkeypatch, version, old):
    monkeypatch.setattr(triton.util, "find_spec", lambda name: object())
    monkeypatch.setattr(triton.metadata, "version", lambda name: version)
    why = triton.unavailable()
    assert (why is not None) == old
    if old:
        assert why == "Triton 3.3 is too old: 3.4 is needed, which comes with torch 2.8"


@pytest.mark.parametrize(("version", "needs"), [("3.7.1", True), ("3.9.0", False)])
def test_missing_c_compiler_is_reported(monkeypatch, version, needs):
    monkeypatch.setattr(triton.util, "find_spec", lambda name: object())
    monkeypatch.setattr(triton.metadata, "version", lambda name: version)
    monkeypatch.setattr(triton, "INTERPRETED", False)
    monkeypatch.setenv("CC", "no-such-compiler")
    why = triton.unavailable()
    assert (why is not None) == needs
    if needs:
        assert why.startswith("Triton 3.7 needs a C compiler to launch kernels, gcc or clang")


def test_missing_device_is_reported(monkeypatch):
    monkeypatch.setattr(triton, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert triton.no_device() == "no CUDA or ROCm device is available"
    assert backends()["triton"] is not None


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("cu", [[0, 5], [0, 0, 64, 64, 70, 201], [0, 1, 2, 3], [0, 128, 256]])
def test_every_chunk_of_packed_sequences_has_its_own_slot(cu, chunk):
    offsets = torch.tensor(cu, dtype=torch.int32)
    x = torch.empty(1, cu[-1], 1)
    count = configs.slots(x, offsets, chunk)
    rows = configs.row_of_slot(offsets, chunk, count).tolist()
    assert len(rows) == count
    for r, (a, b) in enumerate(itertools.pairwise(cu)):
        first = a // chunk + r
        assert rows[first : first + -(-(b - a) // chunk)] == [r] * -(-(b - a) // chunk)


@pytest.mark.parametrize("cu", [[100, 300, 700], [0, -640, 100], [0, 900, 300, 64]])
def test_wrong_offsets_give_valid_sequence_indices(cu):
    rows = configs.row_of_slot(torch.tensor(cu, dtype=torch.int32), 64, 11 + len(cu))
    assert rows.min() >= 0
    assert rows.max() < len(cu) - 1


def test_long_sequence_is_chunked_and_many_channels_are_fused():
    assert not configs.is_fused(1, 131072, 131072, 64, Taylor(6))
    chunk = configs.chunk_length(1, 131072, 64)
    assert 2 * (131072 // chunk) >= configs.WARPS
    assert configs.is_fused(64, 4096, 4096, 768, Taylor(6))
    # More than the registers hold:
    assert not configs.is_fused(64, 4096, 4096, 768, Quadrature(33))
