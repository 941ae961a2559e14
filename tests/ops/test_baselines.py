"""The fast versions of the mechanisms that the paper compares with, against the reference."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from op_helpers import causals
from torch import Tensor
from torch.testing import assert_close

from eattn.ops import baselines, reference

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
# Lq, Lk: queries may follow earlier keys; lengths are one past a chunk of 128 and of 256.
LENGTHS = pytest.mark.parametrize("lengths", [(1, 1), (1, 9), (7, 7), (5, 9), (130, 259)], ids=str)


def draw(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64).requires_grad_()


def mask(B: int, L: int) -> Tensor:
    """Mask random keys, the first key of each row, and all keys of the last of several rows."""
    key_mask = torch.rand(B, L, generator=torch.Generator().manual_seed(1)) > 0.4
    key_mask[:, 0] = False
    key_mask[-1] &= B == 1
    return key_mask


def value_and_gradients(op, *inputs: Tensor) -> list[Tensor]:
    y = op(*inputs)
    gy = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return [y.detach(), *torch.autograd.grad(y, inputs, gy.to(y.dtype))]


def linear(kernel, q, k, v, **options):
    return baselines.linear_attention(kernel, q, k, v, **options)[0]


def scaled(literal):
    return lambda q, k, v, **options: literal(q / q.shape[-1] ** 0.5, k, v, **options)


OPS = {
    "sa": (baselines.sa, scaled(reference.sa)),
    "sa-math": (baselines.sa_math, scaled(reference.sa)),
    "la": (partial(linear, baselines.ELU), reference.la),
    "taylor": (partial(linear, baselines.TAYLOR), reference.taylor_dot),
}
ops = pytest.mark.parametrize("name", OPS)
LINEAR = {"la": baselines.ELU, "taylor": baselines.TAYLOR}


@ops
@LENGTHS
@causals
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_fast_mechanism_matches_reference_per_head(name, lengths, causal, masked):
    Lq, Lk = lengths
    fast, literal = OPS[name]
    q, k, v = draw(2, 3, Lq, 4), draw(2, 3, Lk, 4, seed=1), draw(2, 3, Lk, 4, seed=2)
    options = dict(causal=causal, key_mask=mask(2, Lk) if masked else None)

    def by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
        return torch.stack([literal(*head, **options) for head in heads], 1)

    got = value_and_gradients(partial(fast, **options), q, k, v)
    assert_close(got, value_and_gradients(by_head, q, k, v), rtol=1e-9, atol=1e-10)


@ops
@causals
def test_query_without_keys_gives_zero_and_zero_gradient(name, causal):
    q, k, v = draw(2, 3, 7, 4), draw(2, 3, 7, 4, seed=1), draw(2, 3, 7, 4, seed=2)
    y, *grads = value_and_gradients(
        partial(OPS[name][0], causal=causal, key_mask=mask(2, 7)), q, k, v
    )
    assert not y[1].any() and not any(g[1].any() for g in grads)
    if causal:  # the first key is masked, so the first query attends to none
        assert not y[0, :, 0].any() and not grads[0][0, :, 0].any()
    assert y[0, :, -1].all()


@pytest.mark.parametrize("name", [*OPS, "aft"])
@DTYPES
@causals
def test_long_mean_of_ones_is_one(name, dtype, causal):
    """A sum of ones in bfloat16 would stop at 256."""
    q, k = (draw(1, 2, 2000, 4, seed=seed).detach().to(dtype) for seed in (0, 1))
    if name == "aft":
        w = draw(2000, 2000, seed=1).detach().to(dtype)
        y = baselines.aft(k[0], torch.ones_like(k[0]), w, causal=causal)
    else:
        y = OPS[name][0](q, k, torch.ones_like(k), causal=causal)
    assert y.dtype == dtype
    assert (y - 1).abs().max() <= torch.finfo(dtype).eps + 1e-5


# VmHWM, not ru_maxrss, which starts at the peak of the parent process.
MEMORY = """
import re, torch
from eattn.ops import baselines
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
torch.set_num_threads(1)
q, k, v = (torch.randn(4, 4, 4096, 8, requires_grad=True) for _ in range(3))
key_mask = torch.arange(4096).expand(4, -1) < 4000
for L in (64, 4096):
    before = peak()
    qkv = (x[:, :, :L] for x in (q, k, v))
    baselines.sa(*qkv, key_mask=key_mask[:, :L]).sum().backward()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_masked_sdpa_memory_is_linear_in_length():
    """[B, L, L] would be 64 MiB of bools and 256 MiB of floats; q, k, v are 2 MiB each."""
    script = [sys.executable, "-c", MEMORY]
    kib = int(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert kib < 48 * 1024


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("d", [1, 2, 5, 64])
def test_products_of_features_are_the_weights(name, d):
    q, k = draw(2, 3, 7, d) / d**0.5, draw(2, 3, 9, d, seed=1)
    kernel = LINEAR[name]
    features = kernel.phi(q)
    assert features.shape[-1] == (d if name == "la" else 1 + d + d * (d + 1) // 2)
    assert_close(features @ kernel.phi(k).mT, kernel.weights(q, k), rtol=1e-11, atol=1e-11)
    assert (kernel.weights(10 * q, k) > 0).all()  # for "taylor" at least 1 / 2


@pytest.mark.parametrize("name", LINEAR)
@causals
def test_state_replaces_earlier_keys(name, causal):
    kernel = LINEAR[name]
    q, k, v = draw(2, 3, 9, 4), draw(2, 3, 300, 4, seed=1), draw(2, 3, 300, 4, seed=2)
    run = partial(baselines.linear_attention, kernel, causal=causal)

    def continued(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        earlier = k[:, :, :291], v[:, :, :291]
        _, state = run(earlier[0], *earlier)
        return run(q, k[:, :, 291:], v[:, :, 291:], state=state)[0]

    def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries = torch.cat([k[:, :, :291], q], 2)
        return run(queries, k, v)[0][:, :, 291:]

    want = value_and_gradients(whole, q, k, v)
    assert_close(value_and_gradients(continued, q, k, v), want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_attention_state_is_the_sum_of_features(name):  # Eq. 18
    kernel, k, v = LINEAR[name], draw(2, 3, 300, 4), draw(2, 3, 300, 4, seed=1)
    _, state = baselines.linear_attention(kernel, k, k, v, causal=True)
    assert_close(state[..., :-1], kernel.phi(k).mT @ v)
    assert_close(state[..., -1], kernel.phi(k).sum(2))


@causals
@pytest.mark.parametrize("L", [1, 7, 65])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_aft_matches_reference(causal, L, masked):
    options = dict(causal=causal, key_mask=mask(2, L) if masked else None)
    inputs = draw(2, L, 5), draw(2, L, 5, seed=1), draw(L, L, seed=2)
    want = value_and_gradients(partial(reference.aft, **options), *inputs)
    got = value_and_gradients(partial(baselines.aft, **options), *inputs)
    assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_aft_aligns_fewer_queries_with_last_keys():
    k, v, w = draw(2, 9, 5), draw(2, 9, 5, seed=1), draw(9, 9, seed=2)
    whole = reference.aft(k, v, w, causal=True)
    assert_close(baselines.aft(k, v, w[6:], causal=True), whole[:, 6:])


@causals
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_aft_is_finite_for_huge_keys(causal, dtype):
    k = torch.linspace(-1e4, 1e4, 50).view(1, 50, 1).expand(2, 50, 3).to(dtype).requires_grad_()
    v, w = draw(2, 50, 3).to(dtype), draw(50, 50, seed=1).to(dtype)
    y = baselines.aft(k, v, w, causal=causal)
    assert y.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), [k, v, w]))
    assert_close(y[:, -1], v[:, -1])  # the largest key has all the weight


def test_later_key_does_not_change_causal_aft():
    """Earlier queries attend only to earlier keys, even if a later key is huge."""
    k = torch.tensor([0.0, 2.0, 0.0, 500.0], dtype=torch.float64).view(1, 4, 1)
    v, w = torch.arange(4.0, dtype=torch.float64).view(1, 4, 1), torch.zeros(4, 4).double()
    got = baselines.aft(k, v, w, causal=True)
    assert_close(got, reference.aft(k, v, w, causal=True))


def test_aft_accepts_large_biases():
    inputs = draw(2, 20, 3), draw(2, 20, 3, seed=1), 300 * draw(20, 20, seed=2)
    want = reference.aft(*inputs, causal=True)
    assert_close(baselines.aft(*inputs, causal=True), want)
    single = baselines.aft(*(x.float() for x in inputs), causal=True)
    assert_close(single.double(), want, rtol=1e-4, atol=1e-4)


def loop(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    out = []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        out.append(h)
    return torch.stack(out, 1)


def recurrence(B: int, L: int, D: int) -> list[Tensor]:
    a = torch.sigmoid(draw(B, L, D) + 2).detach().requires_grad_()
    return [a, draw(B, L, D, seed=1), draw(B, D, seed=2)]


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (2, 2, 3), (3, 7, 5), (1, 65, 2), (2, 257, 3), (1, 3000, 2)], ids=str
)
def test_linear_rnn_matches_a_loop(shape):
    inputs = recurrence(*shape)
    want = value_and_gradients(loop, *inputs)
    assert_close(value_and_gradients(baselines.linear_rnn, *inputs), want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("L", [1, 4, 7])
def test_linear_rnn_passes_gradcheck(L):
    assert torch.autograd.gradcheck(baselines.linear_rnn, recurrence(2, L, 3))


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3)], ids=str)
def test_linear_rnn_accepts_empty_sequences(shape):
    inputs = recurrence(*shape)
    y, *grads = value_and_gradients(baselines.linear_rnn, *inputs)
    assert y.shape == shape
    assert all(g.shape == x.shape and not g.any() for g, x in zip(grads, inputs, strict=True))


def test_linear_rnn_is_exact_for_factors_zero_and_one():
    """A factor of 0 resets the state, a factor of 1 keeps it, as for a masked token."""
    a, b = torch.ones(1, 50, 2), torch.zeros(1, 50, 2)
    a[:, 10], b[:, 10] = 0, 3
    y = baselines.linear_rnn(a, b, torch.full((1, 2), 7.0))
    assert (y[:, :10] == 7).all() and (y[:, 10:] == 3).all()


def test_linear_rnn_accepts_any_strides():
    a, b, h = (x.detach() for x in recurrence(2, 64, 6))
    want = baselines.linear_rnn(a, b, h)
    odd = [x.mT.contiguous().mT for x in (a, b)]
    assert_close(baselines.linear_rnn(*odd, h), want)
    halves = [x.chunk(2, -1)[1] for x in (a, b, h)]
    assert_close(baselines.linear_rnn(*halves), want[..., 3:])


def delta_inputs(B: int, H: int, L: int, d: int) -> list[Tensor]:
    """Return q, k, v and beta, with keys of length 1."""
    q, k, v = (draw(B, H, L, d, seed=seed) for seed in range(3))
    k = torch.nn.functional.normalize(k.detach(), dim=-1).requires_grad_()
    return [q, k, v, draw(B, H, L, seed=3).sigmoid().detach().requires_grad_()]


def gated_inputs(B: int, H: int, L: int, d: int) -> list[Tensor]:
    """Return q, k, v and log decays."""
    g = -draw(B, H, L, d, seed=3).detach().exp()
    return [*(draw(B, H, L, d, seed=seed) for seed in range(3)), g.requires_grad_()]


def delta_literal(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, key_mask: Tensor | None = None
) -> Tensor:
    if key_mask is not None:
        beta = torch.where(key_mask.unsqueeze(1), beta, 0.0)
    heads = zip(*(x.unbind(1) for x in (q, k, v, beta)), strict=True)
    return torch.stack([reference.delta_rule(*head) for head in heads], 1)


def gated_literal(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, key_mask: Tensor | None = None
) -> Tensor:
    if key_mask is not None:
        k, g = (torch.where(key_mask[:, None, :, None], x, 0.0) for x in (k, g))
    heads = zip(*(x.unbind(1) for x in (q, k, v, g)), strict=True)
    return torch.stack([reference.gated_la(*head) for head in heads], 1)


# The chunked form, the recurrence, and random inputs
RULES = {
    "delta": (baselines.delta_rule, delta_literal, delta_inputs),
    "gated": (baselines.gated_linear_attention, gated_literal, gated_inputs),
}
rules = pytest.mark.parametrize("rule", RULES)


@rules
@pytest.mark.parametrize("L", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_chunked_rule_matches_recurrence(rule, L, masked):
    chunked, literal, inputs = RULES[rule]
    key_mask, x = mask(2, L) if masked else None, inputs(2, 3, L, 5)
    want = value_and_gradients(partial(literal, key_mask=key_mask), *x)
    got = value_and_gradients(lambda *x: chunked(*x, key_mask=key_mask)[0], *x)
    assert_close(got, want, rtol=1e-9, atol=1e-10)


@rules
def test_chunked_rule_continues_from_its_state(rule):
    chunked, literal, inputs = RULES[rule]

    def continued(*x: Tensor) -> Tensor:
        state, out = None, []
        for part in zip(*(z.split([70, 1, 0, 79], 2) for z in x), strict=True):
            y, state = chunked(*part, state=state)
            out.append(y)
        return torch.cat(out, 2)

    x = inputs(2, 3, 150, 5)
    want = value_and_gradients(literal, *x)
    assert_close(value_and_gradients(continued, *x), want, rtol=1e-9, atol=1e-10)


@rules
def test_chunked_rule_passes_gradcheck(rule):
    chunked, _, inputs = RULES[rule]
    state = draw(1, 2, 3, 3, seed=4)
    assert torch.autograd.gradcheck(
        lambda state, *x: chunked(*x, state=state), (state, *inputs(1, 2, 5, 3))
    )


def test_delta_rule_replaces_the_value_of_a_key():
    """With beta = 1, reading any of d orthogonal keys gives the last value written to it."""
    keys, values = torch.eye(4).repeat(50, 1)[None, None], draw(1, 1, 200, 4).detach().float()
    y, s = baselines.delta_rule(keys, keys, values, torch.ones(1, 1, 200))
    assert_close(y, values)
    assert_close(s, values[:, :, -4:].mT)


@DTYPES
def test_delta_rule_is_accurate_for_one_repeated_key(dtype):
    """Writing 1000 values to nearly the same key does not accumulate rounding errors."""
    q, k, v, beta = (x.detach() for x in delta_inputs(1, 1, 1000, 16))
    k = torch.nn.functional.normalize(k[:, :, :1] + 0.01 * k, dim=-1)
    narrow = [x.to(dtype) for x in (q, k, v, beta)]
    check_accuracy(baselines.delta_rule, delta_literal, narrow)


@DTYPES
@pytest.mark.parametrize("g", [0.0, -1e-6, -3.0, -100.0, -torch.inf])
def test_gated_attention_is_accurate_for_any_decay(dtype, g):
    """The sum of 64 log decays of -3 underflows in float32; its inverse would overflow."""
    q, k, v, _ = (x.detach().to(dtype) for x in gated_inputs(1, 1, 300, 16))
    decay = torch.full_like(q, g)
    decay[:, :, ::7] = 0.0
    check_accuracy(baselines.gated_linear_attention, gated_literal, [q, k, v, decay])


def check_accuracy(chunked, literal, narrow: list[Tensor]) -> None:
    want = literal(*(x.double() for x in narrow))
    got, state = chunked(*narrow)
    assert got.dtype == narrow[0].dtype and state.dtype == torch.float32
    error = (got.double() - want).abs().max() / want.abs().max()
    assert error < torch.finfo(got.dtype).eps + 1e-5


def test_gated_attention_has_finite_gradients_for_infinite_decay():
    q, k, v, g = gated_inputs(1, 2, 70, 3)
    g = g.detach().masked_fill(g.detach() < -1, -torch.inf).requires_grad_()
    got = value_and_gradients(lambda *x: baselines.gated_linear_attention(*x)[0], q, k, v, g)
    assert all(x.isfinite().all() for x in got)
    assert_close(got[:4], value_and_gradients(gated_literal, q, k, v, g)[:4])


def test_rotation_matches_complex_product():
    x, position = draw(2, 3, 9, 6), torch.tensor([[0], [100]]) + torch.arange(9)
    got = value_and_gradients(partial(baselines.rope, position=position), x)

    def literal(x: Tensor) -> Tensor:
        return torch.stack([reference.rope(head, position) for head in x.unbind(1)], 1)

    assert_close(got, value_and_gradients(literal, x), rtol=1e-9, atol=1e-10)


def test_rotated_products_depend_only_on_distance():
    q, k, position = draw(1, 1, 9, 6), draw(1, 1, 9, 6, seed=1), torch.arange(9).unsqueeze(0)
    near, far = (
        baselines.rope(q, position + start) @ baselines.rope(k, position + start).mT
        for start in (0, 1000)
    )
    assert_close(near, far, rtol=1e-9, atol=1e-10)
