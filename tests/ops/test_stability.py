"""Large keys, long sequences, masked rows and NaN: results are finite and accurate."""

from dataclasses import replace

import pytest
import torch
from op_helpers import Case, assert_near, causals, draw, every_backend, make, oracle, pairwise, run
from torch.utils._pytree import tree_leaves

from eattn import Quadrature, Taylor, ea_series
from eattn.ops import reference

EPS = torch.finfo(torch.float32).eps
MASKED = ["mask", "mask state", "packed mask", "mask gate"]
EXPANSIONS = [Taylor(6), Quadrature(65)]
expansions = pytest.mark.parametrize("expansion", EXPANSIONS, ids=str)


def check(q, k, v, order: int, causal: bool, backend: str) -> None:
    """Compare values and gradients in float32 with the float64 oracle on the same inputs."""
    case = Case(q.float(), k.float(), v.float(), Taylor(order), causal, through_state=False)
    got, want = run(case, backend), oracle(case)
    bound = 8 * reference.condition(Taylor(order)) * EPS * float(v.abs().max())
    assert_near(got.y, want.y, bound, "y")
    for name in "qkv":
        g = want.grads[name]  # dk is a difference of terms of magnitude 2 k v
        scale = float(g.abs().max()) + 1 + float(k.abs().max())
        assert_near(got.grads[name], g, bound * scale, f"gradient of {name}")


# Order, largest |q|, largest |k|: the ranges of PAPER.md, and large powers of q with keys near 0.
SIZES = [(0, 1, 1), (2, 10, 10), (6, 1, 1), (6, 100, 100), (8, 1, 1), (8, 100, 100)]
SIZES += [(2, 10, 1e3), (6, 10, 1e3), (8, 10, 1e3), (6, 1e3, 1e3), (10, 1e3, 1e3)]
SIZES += [(6, 7e4, 0), (10, 1e3, 0), (16, 100, 0), (6, 7e4, 1e-5), (10, 1e3, 6e-4), (16, 100, 6e-3)]


@every_backend
@causals
@pytest.mark.parametrize(("order", "q_size", "k_size"), SIZES)
def test_queries_and_keys_of_any_size_match_reference(backend, causal, order, q_size, k_size):
    q, k = (draw(1, 50, 9, seed=i).clamp(-1, 1) * size for i, size in ((1, q_size), (2, k_size)))
    check(q, k, draw(1, 50, 9, seed=3), order, causal, backend)


@every_backend
@causals
@pytest.mark.parametrize(
    ("order", "size"), [(2, 1e5), (6, 3e5), (8, 1e4), (10, 2e3), (12, 500), (14, 200), (16, 100)]
)
def test_large_query_with_zero_and_distant_key_matches_reference(backend, causal, order, size):
    """Powers of q and k times the sums may overflow, although the weight of the key is tiny."""
    k = torch.tensor([[0.0] * 5, [3, 5, 9, -9, 12]], dtype=torch.float64).unsqueeze(0)
    q = torch.tensor([0, size], dtype=torch.float64).view(1, 2, 1).expand_as(k)
    check(
        q, k, torch.tensor([1.0, -1.0]).double().view(1, 2, 1).expand_as(k), order, causal, backend
    )


@every_backend
@causals
def test_queries_with_infinite_powers_attend_to_zero_keys(backend, causal):
    q, v = torch.full((1, 5, 3), 1e5), draw(1, 5, 3, seed=1).float()
    y = ea_series(q, torch.zeros_like(v), v, order=10, causal=causal, backend=backend)
    count = torch.arange(1, 6).view(1, -1, 1)
    torch.testing.assert_close(y, v.cumsum(1) / count if causal else v.mean(1, True).expand_as(v))


@every_backend
@causals
@pytest.mark.parametrize("key", [50.0, -50.0, 1e3])
def test_equal_large_keys_average_the_values(backend, causal, key):
    v = draw(1, 70, 5, seed=1)
    q = draw(1, 70, 5, seed=2)
    check(q, torch.full_like(v, key), v, 6, causal, backend)
    k = torch.full_like(v, key).float()
    y = ea_series(q.float(), k, v.float(), causal=causal, backend=backend)
    mean = v.cumsum(1) / torch.arange(1, 71).view(1, -1, 1) if causal else v.mean(1, True)
    assert_near(y, mean.expand_as(v), 16 * reference.condition(Taylor(6)) * EPS * 4, "y")


@every_backend
@pairwise("small_at, large, causal", [0, 1, 20, 69], [12.0, 50.0], [False, True])
def test_one_small_key_among_large_keys_matches_reference(backend, causal, small_at, large):
    q, v = draw(1, 70, 5, seed=1), draw(1, 70, 5, seed=2)
    k = draw(1, 70, 5, seed=3) + large
    k[:, small_at] = 0.1
    check(q, k, v, 6, causal, backend)


@every_backend
@causals
def test_shrinking_and_growing_keys_match_reference(backend, causal):
    q, v = draw(1, 90, 5, seed=1), draw(1, 90, 5, seed=2)
    ramp = torch.linspace(30, 0, 90, dtype=torch.float64).view(1, -1, 1)
    ramp = ramp + draw(1, 90, 5, seed=3) / 10
    check(q, ramp, v, 6, causal, backend)
    check(q, ramp.flip(1), v, 6, causal, backend)


@every_backend
def test_small_old_key_does_not_make_decayed_keys_underflow(backend):
    """One tiny key, then 10,000 large ones, whose weight relative to it is e^-400."""
    L = 10_001
    q, v = draw(1, L, 3, seed=1), draw(1, L, 3, seed=2)
    k = draw(1, L, 3, seed=3) / 100 + 20
    k[:, 0] = 1e-4
    rate = torch.tensor([0.1, 1.0, 30.0])  # of forgetting: the tiny key counts for 4,000 to 13
    gate = -rate * draw(1, L, 3, seed=4).abs().clamp(0.5, 2)
    case = Case(q, k, v, Taylor(6), True, log_decay=gate, through_state=False).to(torch.float32)
    got, want = run(case, backend), run(case.to(torch.float64), backend)
    bound = 8 * reference.condition(Taylor(6)) * EPS * float(v.abs().max())
    assert_near(got.y, want.y, bound, "y")
    assert_near(got.y[:, 100:, 2], case.v.double()[:, 100:, 2], 1e-3, "y of the fastest channel")
    for name, grad in want.grads.items():
        scale = float(grad.abs().max()) + float(k.abs().max())
        assert_near(got.grads[name], grad, bound * scale, f"gradient of {name}")


@every_backend
@expansions
def test_nan_gate_affects_its_channel_from_its_token_on(backend, expansion):
    case = make((2, 37, 21), expansion=expansion, causal=True, with_="gate").to(torch.float32)
    clean, spoiled = run(case, backend), case.log_decay.clone()
    spoiled[:, 11, 4] = torch.nan
    got = run(replace(case, log_decay=spoiled), backend)
    others = [c for c in range(21) if c != 4]
    assert torch.equal(got.y[:, :11], clean.y[:, :11])
    assert torch.equal(got.y[..., others], clean.y[..., others])
    assert got.y[:, 11:, 4].isnan().all()
    for g in got.grads:
        assert torch.equal(got.grads[g][..., others], clean.grads[g][..., others])


@every_backend
@causals
@expansions
def test_long_sums_stay_accurate(backend, causal, expansion):
    """At L = 2^17 with values of mean 1, float32 is within 1e-5 max|v| of float64."""
    L = 2**17
    q, k = (draw(1, L, 3, seed=i, scale=0.7).float() for i in range(2))
    v = draw(1, L, 3, seed=3, mean=1.0).float()
    options = dict(expansion=expansion, causal=causal, backend=backend)
    y = ea_series(q, k, v, **options)
    want = ea_series(q.double(), k.double(), v.double(), **options)
    assert_near(y, want, 1e-5 * float(v.abs().max()), "y")


@every_backend
@causals
@expansions
def test_row_without_keys_is_zero_with_zero_gradient(backend, causal, expansion):
    q, k, v = (draw(3, 40, 5, seed=i).float().requires_grad_() for i in range(3))
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[0] = False
    mask[1, :17] = False
    y = ea_series(q, k, v, expansion=expansion, causal=causal, key_mask=mask, backend=backend)
    y.square().sum().backward()
    assert not y[0].any()
    if causal:
        assert not y[1, :17].any() and y[1, 17:].all()
        assert not q.grad[1, :17].any()
    for x in (q, k, v):
        assert x.grad.isfinite().all() and not x.grad[0].any()
    assert not k.grad[1, :17].any() and not v.grad[1, :17].any()


@every_backend
@pairwise(
    "with_, junk, expansion, causal",
    MASKED,
    [torch.nan, torch.inf, -torch.inf, 1e30],
    EXPANSIONS,
    [False, True],
)
def test_masked_tokens_change_no_bit(backend, causal, expansion, with_, junk):
    causal = causal or "gate" in with_
    case = make((1, 45, 5), expansion=expansion, causal=causal, with_=with_).to(torch.float32)
    hidden = ~case.key_mask.unsqueeze(-1)
    tensors = {"k": case.k, "v": case.v}
    if case.log_decay is not None:
        tensors["log_decay"] = case.log_decay
    spoiled = replace(case, **{n: x.masked_fill(hidden, junk) for n, x in tensors.items()})
    got, want = run(spoiled, backend), run(case, backend)
    assert torch.equal(got.y, want.y)
    assert all(
        torch.equal(a, b) for a, b in zip(*map(tree_leaves, (got.state, want.state)), strict=True)
    )
    assert all(torch.equal(got.grads[name], want.grads[name]) for name in want.grads)


@every_backend
@pairwise(
    "name, junk, expansion, causal",
    ["q", "k", "v"],
    [torch.nan, torch.inf],
    EXPANSIONS,
    [False, True],
)
def test_nan_and_inf_stay_in_their_channel(backend, causal, expansion, name, junk):
    case = make((2, 37, 21), expansion=expansion, causal=causal).to(torch.float32)
    clean, spoiled = run(case, backend), getattr(case, name).clone()
    spoiled[:, 11, 4] = junk
    got = run(replace(case, **{name: spoiled}), backend)
    others = [c for c in range(21) if c != 4]
    assert torch.equal(got.y[..., others], clean.y[..., others])
    for g in "qkv":
        assert torch.equal(got.grads[g][..., others], clean.grads[g][..., others])
    if expansion == Taylor(6) or name == "v" or junk is torch.nan:  # a grid clamps infinite q and k
        assert not got.y[:, 11, 4].isfinite().any()
    if causal:
        assert torch.equal(got.y[:, :11], clean.y[:, :11])


@every_backend
@causals
def test_half_precision_keys_do_not_underflow(backend, causal):
    """e^-k^2 underflows in fp16 for |k| > 4.1; sums are float32, relative to the smallest key."""
    for dtype in (torch.float16, torch.bfloat16):
        q, v = draw(1, 60, 5, seed=1), draw(1, 60, 5, seed=2)
        k = draw(1, 60, 5, seed=3) + 8
        case = Case(q, k, v, Taylor(6), causal, through_state=False).to(dtype)
        got, want = run(case, backend), oracle(case)
        assert_near(got.y, want.y, torch.finfo(dtype).eps * float(v.abs().max()), "y")
        assert all(got.grads[name].isfinite().all() for name in "qkv")


@every_backend
def test_outlier_key_has_zero_weight_and_zero_gradient(backend):
    case = make((1, 30, 4), expansion=Taylor(12), causal=True).to(torch.float32)
    case.k[:, 3] = 1e3
    answer = run(case, backend)
    assert answer.y.isfinite().all()
    assert answer.grads["k"].isfinite().all()
    quiet = run(replace(case, through_state=False), backend)
    assert not quiet.grads["k"][:, 3].any() and not quiet.grads["v"][:, 3].any()
