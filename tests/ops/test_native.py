"""The Python side of the CPU kernels: the argument struct, and instruction sets."""

import platform
import re
from pathlib import Path

import pytest
import torch

from eattn import Quadrature, ea_series
from eattn.ops import native

installed = pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number


def test_arguments_have_the_order_of_the_cpp_struct():
    source = (Path(native.__file__).parent / "native" / "args.h").read_text()
    body = re.search(r"struct EattnArgs \{(.*?)\n\};", source, re.DOTALL)[1]
    body = re.sub(r"//.*", "", body)
    names = re.findall(r"\b(\w+)(?=[,;])", body)
    assert names == [*native._VIEWS, *native._POINTERS, *native._NUMBERS]


@installed
def test_every_instruction_set_is_usable_or_gives_a_reason():
    assert native.ISAS["baseline"] is None
    for isa, why_not in native.ISAS.items():
        assert why_not in (None, f"this CPU has no {isa}")
        assert native.unavailable(isa) == why_not
    assert native.unavailable("avx1024") == "the kernels were not built for avx1024"
    assert "baseline" in native.describe()


@installed
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="not an x86 processor")
@pytest.mark.parametrize("threads", [1, 2])
def test_wide_grids_flush_subnormals_during_the_call_only(threads):
    torch.manual_seed(0)
    k, v = torch.randn(2, 2, 2000, 64).unbind()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        state = ea_series(
            k, k, v, expansion=Quadrature(25, 12), causal=True, return_state=True, backend="native"
        )[1]
        halves = torch.full((100_000,), TINY) / 2  # on all threads
    finally:
        torch.set_num_threads(before)
    sums = torch.cat([state.s.flatten(), state.z.flatten()]).abs()
    assert not ((sums > 0) & (sums < TINY)).any()
    assert (halves > 0).all()
