"""Blockwise exact EA against the quadratic reference: values, gradients, memory, torch.compile."""

import subprocess
import sys

import pytest
import torch
from op_helpers import causals, poisoned_memory
from torch import Tensor
from torch.testing import assert_close

from eattn.ops import ea, exact, reference

# [B, L, D]: ones; primes; one past a block of 64 (many channels) and of 512 (one channel).
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
    """Mask random keys, the first third of every row, and all keys of the last of several rows."""
    key_mask = torch.rand(B, L, generator=torch.Generator().manual_seed(1)) > 0.4
    key_mask[:, : L // 3] = False
    key_mask[-1] &= B == 1
    return key_mask


def value_and_gradients(op, inputs, **options) -> list[Tensor]:
    y = op(*inputs, **options)
    gy = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return [y, *torch.autograd.grad(y, inputs, gy.to(y.dtype))]


@SHAPES
@causals
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_exact_matches_reference(shape, causal, masked):
    options = {"causal": causal, "key_mask": mask(*shape[:2]) if masked else None}
    inputs = qkv(shape)
    expected = value_and_gradients(reference.ea, inputs, **options)
    assert_close(value_and_gradients(ea, inputs, **options), expected)


@causals
def test_tiny_blocks_match_reference(causal, monkeypatch):
    """Channels, queries and keys all end in the middle of a block."""
    monkeypatch.setattr(exact, "BLOCK", 3 * 64 * 64)
    inputs = qkv((2, 150, 5))
    expected = value_and_gradients(reference.ea, inputs, causal=causal)
    assert_close(value_and_gradients(ea, inputs, causal=causal), expected)


@pytest.mark.parametrize(("queries", "keys"), [(1, 130), (130, 1), (70, 5), (5, 70), (5, 0)])
def test_cross_attention_matches_reference(queries, keys):
    inputs = qkv((2, queries, 3), keys=keys)
    expected = value_and_gradients(reference.ea, inputs, key_mask=mask(2, keys))
    assert_close(value_and_gradients(ea, inputs, key_mask=mask(2, keys)), expected)


# Lq, Lk, D: blocks of 64 (many channels) and of 512 (one), which the diagonal divides.
AFTER = [(1, 1, 3), (1, 130, 3), (2, 130, 101), (65, 130, 101), (70, 70, 101), (7, 1030, 1)]


@pytest.mark.parametrize(("queries", "keys", "dim"), [*AFTER, (600, 1030, 1)])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_fewer_queries_are_aligned_with_the_last_keys(queries, keys, dim, masked):
    """The last query is aligned with the last key, as in `reference`."""
    inputs = qkv((2, queries, dim), keys=keys)
    key_mask = mask(2, keys) if masked else None
    expected = value_and_gradients(reference.ea, inputs, causal=True, key_mask=key_mask)
    assert_close(value_and_gradients(ea, inputs, causal=True, key_mask=key_mask), expected)


def test_one_row_of_queries_is_broadcast():
    q, k, v = qkv((3, 5, 2), keys=7)
    expected = value_and_gradients(reference.ea, (q[:1], k, v), causal=True)
    assert_close(value_and_gradients(ea, (q[:1], k, v), causal=True), expected)


@causals
def test_gradcheck_passes(causal):
    def op(*inputs):
        return ea(*inputs, causal=causal, key_mask=mask(2, 5))

    assert torch.autograd.gradcheck(op, qkv((2, 5, 2)))


@causals
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(dtype, causal):
    inputs = qkv((2, 70, 3), dtype=dtype)
    got = value_and_gradients(ea, inputs, causal=causal)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = value_and_gradients(reference.ea, wide, causal=causal)
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == dtype
        # The output is rounded once, and so is the cotangent.
        tolerance = 20 * torch.finfo(torch.float32).eps + 2 * torch.finfo(dtype).eps
        assert (x.double() - y).abs().max() <= tolerance * (1 + y.abs().max())


@causals
@pytest.mark.parametrize("offset", [20.0, 100.0, 1e3])
def test_far_keys_keep_float32_accuracy(causal, offset):
    """e^(-(q - k)^2) underflows for all keys; only their relative weights matter."""
    q, k, v = qkv((1, 150, 4), dtype=torch.float32)
    k = (k + offset).detach().requires_grad_()
    got = value_and_gradients(ea, [q, k, v], causal=causal)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = value_and_gradients(reference.ea, wide, causal=causal)
    assert (got[0].double() - expected[0]).abs().max() < 1e-5
    for x, y in zip(got[1:], expected[1:], strict=True):
        assert (x.double() - y).abs().max() <= 1e-5 * offset * (1 + y.abs().max())


def test_mixed_dtypes_are_promoted():
    q, k, v = (x.detach() for x in qkv((1, 5, 2), dtype=torch.bfloat16))
    assert_close(ea(q, k.float(), v), ea(q.float(), k.float(), v.float()))


@causals
def test_common_offset_of_q_and_k_keeps_float32_accuracy(causal):
    q, k, v = (x.detach() for x in qkv((1, 150, 4)))
    q, k = (x.mul(2**10).round() / 2**10 for x in (q, k))  # so that x + 512 is exact
    near, far = (ea((q + c).float(), (k + c).float(), v.float(), causal=causal) for c in (0, 512))
    assert_close(near, far, rtol=1e-5, atol=1e-5)


@causals
def test_masked_keys_are_never_read(causal):
    q, k, v = qkv((2, 70, 3))
    key_mask = mask(2, 70)
    clean = value_and_gradients(ea, [q, k, v], causal=causal, key_mask=key_mask)
    with torch.no_grad():
        k[~key_mask], v[~key_mask] = torch.nan, torch.inf
    dirty = value_and_gradients(ea, [q, k, v], causal=causal, key_mask=key_mask)
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))


@causals
def test_rows_without_keys_are_zero(causal):
    q, k, v = qkv((2, 70, 3))
    y, *grads = value_and_gradients(ea, [q, k, v], causal=causal, key_mask=mask(2, 70))
    assert not y[1].any() and not any(g[1].any() for g in grads)
    assert not causal or not (y[0, :23].any() or grads[0][0, :23].any())


@pytest.mark.parametrize("new", [0.0, 1e3, torch.nan, torch.inf])
def test_later_token_changes_no_earlier_bit(new):
    q, k, v = qkv((1, 100, 3), dtype=torch.float32)
    before = [y := ea(q, k, v, causal=True), *torch.autograd.grad(y.sum(), q)]
    with torch.no_grad():
        k[:, 70:], v[:, 70:] = new, new
    after = [y := ea(q, k, v, causal=True), *torch.autograd.grad(y.sum(), q)]
    assert all(torch.equal(a[:, :70], b[:, :70]) for a, b in zip(before, after, strict=True))


@causals
def test_nan_stays_in_its_channel(causal):
    q, k, v = qkv((2, 70, 3))
    clean = value_and_gradients(ea, [q, k, v], causal=causal)
    with torch.no_grad():
        k[0, 5, 1] = torch.nan
    for a, b in zip(clean, value_and_gradients(ea, [q, k, v], causal=causal), strict=True):
        assert b[0, 5:, 1].isnan().any()
        assert torch.equal(a[1], b[1]) and torch.equal(a[0][:, [0, 2]], b[0][:, [0, 2]])


@causals
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)], ids=str)
def test_empty_inputs_give_empty_outputs(shape, causal):
    inputs = qkv(shape)
    assert all(x.shape == shape for x in value_and_gradients(ea, inputs, causal=causal))


def test_any_strides_are_accepted_and_inputs_are_unchanged():
    q, k, v = (x.detach().transpose(0, 2) for x in qkv((3, 70, 2)))
    before = [x.clone() for x in (q, k, v)]
    y = ea(q, k, v, causal=True)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))
    assert y.is_contiguous() and torch.equal(y, ea(*before, causal=True))


def test_uninitialised_memory_is_never_read():
    inputs = qkv((2, 70, 3))
    expected = value_and_gradients(ea, inputs, causal=True)
    with poisoned_memory():
        assert_close(value_and_gradients(ea, inputs, causal=True), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@causals
def test_compile_needs_no_graph_break(causal):
    key_mask = mask(2, 70)

    def layer(q, k, v):
        return ea(2 * q, k, v, causal=causal, key_mask=key_mask) + 1

    inputs = qkv((2, 70, 3), dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(value_and_gradients(compiled, inputs), value_and_gradients(layer, inputs))


@causals
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_opcheck_passes(causal, dtype, masked):
    key_mask = mask(2, 7) if masked else None
    torch.library.opcheck(exact._forward, (*qkv((2, 7, 3), dtype=dtype), key_mask, causal))


@causals
def test_exported_program_accepts_other_lengths(causal):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return ea(q, k, v, causal=causal)

    B, L = torch.export.Dim("B"), torch.export.Dim("L")
    inputs = tuple(x.detach() for x in qkv((2, 7, 3)))
    program = torch.export.export(Layer(), inputs, dynamic_shapes=[{0: B, 1: L}] * 3)
    assert not any("eattn" in str(node.target) for node in program.graph.nodes)
    others = [x.detach() for x in qkv((3, 19, 3))]
    assert_close(program.module()(*others), ea(*others, causal=causal))


# VmHWM, not ru_maxrss, which starts at the peak of the parent process.
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
def test_memory_is_linear_in_length():
    """[L, L, D] would be 4 GiB; the tensors of [B, L, D] are 1 MiB each."""
    script = [sys.executable, "-c", MEMORY.format(L=4096)]
    kib = int(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert kib < 64 * 1024


X, MASK = torch.zeros(2, 5, 3), torch.ones(2, 5, dtype=torch.bool)
WRONG = [
    ((X[0], X, X), {}, ValueError, r"q must be \[B, L, D\]"),
    ((X, X[:, :, :2], X), {}, ValueError, "v must have k's shape"),
    ((X, X[:1], X[:1]), {}, ValueError, r"q must be \[1, L, 3\]"),
    ((X, X.int(), X), {}, TypeError, "k must be a floating-point tensor"),
    ((X, X, X.to("meta")), {}, ValueError, "v must be on cpu"),
    ((X, X, X), {"key_mask": MASK[:, 1:]}, ValueError, "key_mask must be"),
    ((X, X, X), {"key_mask": MASK.int()}, TypeError, "key_mask must be a bool"),
    ((X, X[:, 1:], X[:, 1:]), {"causal": True}, ValueError, "needs Lq <= Lk"),
]


@pytest.mark.parametrize(("inputs", "options", "error", "message"), WRONG)
def test_wrong_call_names_the_argument(inputs, options, error, message):
    with pytest.raises(error, match=message):
        ea(*inputs, **options)
