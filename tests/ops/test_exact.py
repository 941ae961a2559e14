"""Blockwise exact EA against the quadratic reference: values, gradients, memory, torch.compile."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from eattn.ops import ea, exact, reference

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
# [B, L, D]: one; primes; one past a block of 64 with many channels; one past a long block with one
SHAPES = pytest.mark.parametrize(
    "shape", [(1, 1, 1), (2, 7, 3), (3, 65, 101), (1, 1025, 1)], ids=str
)


def qkv(shape, *, keys=None, dtype=torch.float64, scale=1.0, mean=0.0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    B, L, D = shape
    lengths = (L, L if keys is None else keys, L if keys is None else keys)
    tensors = [torch.randn(B, n, D, generator=rng, dtype=torch.float64) for n in lengths]
    return [(x * scale + mean).to(dtype).requires_grad_() for x in tensors]


def mask(B: int, L: int) -> Tensor:
    """Some keys hidden, the first ones in every row, all of them in the last of several rows."""
    key_mask = torch.rand(B, L, generator=torch.Generator().manual_seed(1)) > 0.4
    key_mask[:, : L // 3] = False
    key_mask[-1] &= B == 1
    return key_mask


def value_and_gradients(op, inputs, **options) -> list[Tensor]:
    y = op(*inputs, **options)
    gy = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return [y, *torch.autograd.grad(y, inputs, gy.to(y.dtype))]


@SHAPES
@CAUSAL
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_blocks_equal_the_reference(shape, causal, masked):
    options = {"causal": causal, "key_mask": mask(*shape[:2]) if masked else None}
    inputs = qkv(shape)
    expected = value_and_gradients(reference.ea, inputs, **options)
    assert_close(value_and_gradients(ea, inputs, **options), expected)


@CAUSAL
def test_blocks_of_every_shape_equal_the_reference(causal, monkeypatch):
    """Tiny blocks: channels, queries and keys all end in the middle of one."""
    monkeypatch.setattr(exact, "BLOCK", 3 * 64 * 64)
    inputs = qkv((2, 150, 5))
    expected = value_and_gradients(reference.ea, inputs, causal=causal)
    assert_close(value_and_gradients(ea, inputs, causal=causal), expected)


@pytest.mark.parametrize(("queries", "keys"), [(1, 130), (130, 1), (70, 5), (5, 70)])
def test_cross_attention_equals_the_reference(queries, keys):
    inputs = qkv((2, queries, 3), keys=keys)
    expected = value_and_gradients(reference.ea, inputs, key_mask=mask(2, keys))
    assert_close(value_and_gradients(ea, inputs, key_mask=mask(2, keys)), expected)


# Lq, Lk with many channels and with one: blocks of 64 and of 512, cut where the diagonal begins
AFTER = [(1, 1, 3), (1, 130, 3), (2, 130, 101), (65, 130, 101), (70, 70, 101), (7, 1030, 1)]


@pytest.mark.parametrize(("queries", "keys", "dim"), [*AFTER, (600, 1030, 1)])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_queries_after_earlier_keys_are_the_last_rows(queries, keys, dim, masked):
    """The last query sees the last key, as `reference` aligns them too."""
    inputs = qkv((2, queries, dim), keys=keys)
    key_mask = mask(2, keys) if masked else None
    expected = value_and_gradients(reference.ea, inputs, causal=True, key_mask=key_mask)
    assert_close(value_and_gradients(exact.ea_after, inputs, key_mask=key_mask), expected)


def test_more_queries_than_keys_cannot_follow_them():
    q, k, v = qkv((1, 5, 2), keys=4)
    with pytest.raises(ValueError, match="q must be no longer than k, got 5 > 4 tokens"):
        exact.ea_after(q, k, v)


@CAUSAL
def test_gradients_are_those_of_finite_differences(causal):
    def op(*inputs):
        return ea(*inputs, causal=causal, key_mask=mask(2, 5))

    assert torch.autograd.gradcheck(op, qkv((2, 5, 2)))


@CAUSAL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_narrow_floats_are_computed_in_float32(dtype, causal):
    inputs = qkv((2, 70, 3), dtype=dtype)
    got = value_and_gradients(ea, inputs, causal=causal)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = value_and_gradients(reference.ea, wide, causal=causal)
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == dtype
        # the output is rounded once; so was the cotangent
        tolerance = 20 * torch.finfo(torch.float32).eps + 2 * torch.finfo(dtype).eps
        assert (x.double() - y).abs().max() <= tolerance * (1 + y.abs().max())


@CAUSAL
@pytest.mark.parametrize("offset", [20.0, 100.0, 1e3])
def test_far_keys_keep_the_digits_of_float32(causal, offset):
    """e^(-(q - k)^2) is 0 for all of them; what counts is which is nearest, and by how much."""
    q, k, v = qkv((1, 150, 4), dtype=torch.float32)
    k = (k + offset).detach().requires_grad_()
    got = value_and_gradients(ea, [q, k, v], causal=causal)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = value_and_gradients(reference.ea, wide, causal=causal)
    assert (got[0].double() - expected[0]).abs().max() < 1e-5
    for x, y in zip(got[1:], expected[1:], strict=True):
        assert (x.double() - y).abs().max() <= 1e-5 * offset * (1 + y.abs().max())


@CAUSAL
def test_masked_keys_are_never_read(causal):
    q, k, v = qkv((2, 70, 3))
    key_mask = mask(2, 70)
    clean = value_and_gradients(ea, [q, k, v], causal=causal, key_mask=key_mask)
    with torch.no_grad():
        k[~key_mask], v[~key_mask] = torch.nan, torch.inf
    dirty = value_and_gradients(ea, [q, k, v], causal=causal, key_mask=key_mask)
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))


@CAUSAL
def test_rows_without_keys_give_zero(causal):
    q, k, v = qkv((2, 70, 3))
    y, *grads = value_and_gradients(ea, [q, k, v], causal=causal, key_mask=mask(2, 70))
    assert not y[1].any() and not any(g[1].any() for g in grads)
    assert not causal or not (y[0, :23].any() or grads[0][0, :23].any())


@pytest.mark.parametrize("new", [0.0, 1e3, torch.nan, torch.inf])
def test_a_later_token_changes_no_earlier_bit(new):
    q, k, v = qkv((1, 100, 3), dtype=torch.float32)
    before = [y := ea(q, k, v, causal=True), *torch.autograd.grad(y.sum(), q)]
    with torch.no_grad():
        k[:, 70:], v[:, 70:] = new, new
    after = [y := ea(q, k, v, causal=True), *torch.autograd.grad(y.sum(), q)]
    assert all(torch.equal(a[:, :70], b[:, :70]) for a, b in zip(before, after, strict=True))


@CAUSAL
def test_a_nan_stays_in_its_channel(causal):
    q, k, v = qkv((2, 70, 3))
    clean = value_and_gradients(ea, [q, k, v], causal=causal)
    with torch.no_grad():
        k[0, 5, 1] = torch.nan
    for a, b in zip(clean, value_and_gradients(ea, [q, k, v], causal=causal), strict=True):
        assert b[0, 5:, 1].isnan().any()
        assert torch.equal(a[1], b[1]) and torch.equal(a[0][:, [0, 2]], b[0][:, [0, 2]])


@CAUSAL
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)], ids=str)
def test_empty_inputs_give_empty_outputs(shape, causal):
    inputs = qkv(shape)
    assert all(x.shape == shape for x in value_and_gradients(ea, inputs, causal=causal))


def test_queries_without_any_keys_give_zero():
    inputs = qkv((2, 5, 3), keys=0)
    y, dq, dk, dv = value_and_gradients(ea, inputs)
    assert y.shape == (2, 5, 3) and not y.any() and not dq.any()
    assert dk.shape == dv.shape == (2, 0, 3)


def test_strides_do_not_matter_and_inputs_are_left_alone():
    q, k, v = (x.detach().transpose(0, 2) for x in qkv((3, 70, 2)))
    before = [x.clone() for x in (q, k, v)]
    y = ea(q, k, v, causal=True)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))
    assert y.is_contiguous() and torch.equal(y, ea(*before, causal=True))


def test_nothing_uninitialised_is_read():
    inputs = qkv((2, 70, 3))
    expected = value_and_gradients(ea, inputs, causal=True)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
    try:
        assert_close(value_and_gradients(ea, inputs, causal=True), expected, rtol=0, atol=0)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@CAUSAL
def test_compile_sees_one_graph(causal):
    key_mask = mask(2, 70)

    def layer(q, k, v):
        return ea(2 * q, k, v, causal=causal, key_mask=key_mask) + 1

    inputs = qkv((2, 70, 3), dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(value_and_gradients(compiled, inputs), value_and_gradients(layer, inputs))


@CAUSAL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_the_operator_is_registered_properly(causal, dtype, masked):
    key_mask = mask(2, 7) if masked else None
    torch.library.opcheck(exact._forward, (*qkv((2, 7, 3), dtype=dtype), key_mask, causal))


@CAUSAL
def test_an_exported_program_serves_other_lengths(causal):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return ea(q, k, v, causal=causal)

    B, L = torch.export.Dim("B"), torch.export.Dim("L")
    inputs = tuple(x.detach() for x in qkv((2, 7, 3)))
    program = torch.export.export(Layer(), inputs, dynamic_shapes=[{0: B, 1: L}] * 3)
    assert not any("eattn" in str(node.target) for node in program.graph.nodes)
    others = [x.detach() for x in qkv((3, 19, 3))]
    assert_close(program.module()(*others), ea(*others, causal=causal))


# VmHWM, not ru_maxrss: that begins with the peak of whoever started the process, pytest's here.
MEMORY = """
import re, torch
from eattn.ops import ea
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
torch.set_num_threads(1)
q, k, v = (torch.randn(1, {L}, 64, requires_grad=True) for _ in range(3))
ea(q[:, :64], k[:, :64], v[:, :64], causal=True).sum().backward()
before = peak()
ea(q, k, v, causal=True).sum().backward()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_linear_in_the_sequence():
    """[L, L, D] would be 4 GiB; the tensors of [B, L, D] are 1 MiB each."""
    script = [sys.executable, "-c", MEMORY.format(L=4096)]
    kib = int(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert kib < 64 * 1024


def test_bad_input_is_named():
    x = torch.zeros(2, 5, 3)
    with pytest.raises(TypeError, match="k must be a floating-point tensor"):
        ea(x, x.int(), x)
    with pytest.raises(ValueError, match="key_mask must be"):
        ea(x, x, x, key_mask=torch.ones(2, 4, dtype=torch.bool))
