"""ElementwiseAttention: cross-attention, packing, states, orders and initialisation."""

import copy
import re
from itertools import pairwise

import pytest
import torch
from mixer_helpers import MASKS, causals, differentiate, same, tokens

import eattn
from eattn import Quadrature, State, Taylor
from eattn.nn import ElementwiseAttention, TransformerEncoder, make_mixer, set_expansion
from eattn.ops import reference

orders = pytest.mark.parametrize("order", [None, 0, 2, 6, 12])


def layer(dim: int = 7, *, seed: int = 0, **options) -> ElementwiseAttention:
    """Make a float64 layer with non-zero biases."""
    torch.manual_seed(seed)
    made = ElementwiseAttention(dim, **options).double()
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(std=0.3)
    return made


def projected(made: ElementwiseAttention, x: torch.Tensor, context: torch.Tensor | None = None):
    """Project x to q, and the context (x by default) to k and v."""
    q, k, v = made.in_proj(x).split(made.dim, -1)
    return (q, k, v) if context is None else (q, *made.in_proj(context).split(made.dim, -1)[1:])


@orders
@pytest.mark.parametrize(("L", "Lk"), [(1, 9), (9, 1), (5, 70)])
@pytest.mark.parametrize(("masked", "bias"), [(False, True), (True, False)])
def test_cross_attention_reads_keys_and_values_from_context(order, L, Lk, masked, bias):
    made = layer(order=order, bias=bias)
    x, context = tokens(3, L, 7).requires_grad_(), tokens(3, Lk, 7, seed=5).requires_grad_()
    mask = MASKS["a row without tokens"](Lk) if masked else None
    qkv = projected(made, x, context)
    if order is None:
        y = reference.ea(*qkv, key_mask=mask)
    else:
        y = reference.ea_expanded(*qkv, expansion=Taylor(order), key_mask=mask)
    want = differentiate(made, x, made.out_proj(y), context=context)
    same(differentiate(made, x, made(x, key_mask=mask, context=context), context=context), want)


@orders
def test_masked_context_is_never_read(order):
    made, x, mask = layer(order=order), tokens(3, 4, 7).requires_grad_(), MASKS["holes"](9)
    clean = tokens(3, 9, 7, seed=5)
    dirty = clean.masked_fill(~mask.unsqueeze(-1), torch.nan)
    want, got = (
        differentiate(made, x, made(x, key_mask=mask, context=z.requires_grad_()), context=z)
        for z in (clean, dirty)
    )
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert not got[2][~mask].any()


@orders
@causals
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_packed_sequences_match_separate_sequences(order, causal, masked):
    made, x, offsets = layer(order=order, causal=causal), tokens(1, 80, 7), [0, 3, 3, 70, 80]
    mask = MASKS["holes"](80)[:1] if masked else None
    got = made(x, key_mask=mask, cu_seqlens=torch.tensor(offsets))
    for a, b in pairwise(offsets):
        part = None if mask is None else mask[:, a:b]
        same(got[:, a:b], made(x[:, a:b], key_mask=part))


@pytest.mark.parametrize("order", [0, 2, 6, 12])
def test_packed_sequences_return_one_state_each(order):
    made, x = layer(order=order, causal=True), tokens(1, 8, 7)
    _, states = made(x, cu_seqlens=torch.tensor([0, 3, 3, 8]), return_state=True)
    y_t, _ = made.step(x[0, :3], states)
    same(y_t[0], made(torch.cat([x[:, :3], x[:, :1]], 1))[0, -1])
    same(y_t[1], made(x[:, 1:2])[0, 0])
    same(y_t[2], made(torch.cat([x[:, 3:], x[:, 2:3]], 1))[0, -1])


@pytest.mark.parametrize("order", [0, 2, 6, 12])
def test_non_causal_layer_reads_from_state(order):
    """A state given to a non-causal layer replaces the tokens it was made from."""
    made, x, earlier = layer(order=order), tokens(2, 9, 7), tokens(2, 5, 7, seed=5)
    _, state = made(earlier, return_state=True)
    both = torch.cat([earlier, x], 1)
    y, after = made(x, state=state, return_state=True)
    same(y, made(both)[:, 5:])
    want = made(both, return_state=True)[1]
    same([after.s, after.z, after.shift], [want.s, want.z, want.shift])
    same(made(x, context=earlier), made(x, context=earlier[:, :0], state=state))


@causals
@pytest.mark.parametrize("source", [None, 2, 6])
def test_orders_share_parameters(causal, source):
    made, x = layer(order=source, causal=causal), tokens(2, 9, 7)
    for order in (None, 0, 2, 6, 16):
        other = layer(order=order, causal=causal, seed=1)
        other.load_state_dict(made.state_dict())
        if order is None:
            y = eattn.ea(*projected(made, x), causal=causal)
        else:
            y = eattn.ea_series(*projected(made, x), order=order, causal=causal)
        same(other(x), made.out_proj(y))


def test_high_order_approaches_exact_attention():
    made, x = layer(32, order=None, bias=False), tokens(2, 50, 32)
    errors = []
    for order in (2, 6, 16):
        series = copy.deepcopy(made)
        series.expansion = Taylor(order)
        errors.append(float((series(x) - made(x)).detach().norm()))
    assert errors[0] > 5 * errors[1] > 500 * errors[2]


@causals
def test_set_expansion_moves_large_keys_onto_a_wide_grid(causal):
    """Queries more than 5 from all keys, which differ, are rare."""
    torch.manual_seed(0)
    model, x = (
        TransformerEncoder(dim=16, depth=2, mixer="ea", causal=causal),
        torch.randn(4, 200, 16),
    )
    outputs = []
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.in_proj.weight[:32] *= 6
        q, k, _ = model.blocks[0].mixer.qkv(x)
        for expansion in (None, Quadrature(129), Quadrature(25)):
            assert set_expansion(model, expansion) == 2
            outputs.append(model(x))
    assert q.std() == pytest.approx(3, rel=0.1) and k.std() == pytest.approx(3, rel=0.1)
    exact, wide, small = outputs
    assert (wide - exact).norm() < 1e-3 * exact.norm() < 1e-2 * (small - exact).norm()


def test_decay_starts_with_a_spread_of_half_lives():
    made, x = ElementwiseAttention(101, causal=True, decay="fixed"), torch.randn(2, 5, 101)
    half_life = torch.log(torch.tensor(0.5)) / made.decay(x).detach()
    assert half_life.shape == (101,) and (half_life.diff() > 0).all()
    assert float(half_life[0]) == pytest.approx(0.33, abs=0.01)
    assert float(half_life[50]) == pytest.approx(5.5, abs=0.1)
    assert float(half_life[-1]) == pytest.approx(280, abs=1)


def test_gate_starts_near_fixed_decay():
    torch.manual_seed(0)
    options, x = dict(causal=True), torch.randn(3, 50, 64)
    fixed, gated = (ElementwiseAttention(64, **options, decay=d) for d in ("fixed", "gated"))
    logits = [torch.special.logit(made.decay(x).double().exp()) for made in (fixed, gated)]
    difference = logits[1] - logits[0]
    assert difference.shape == x.shape and 0.01 < difference.std() < 0.2
    sizes = [sum(p.numel() for p in made.parameters()) for made in (fixed, gated)]
    plain = sum(p.numel() for p in ElementwiseAttention(64).parameters())
    assert [size - plain for size in sizes] == [64, 33 * 64]


@pytest.mark.parametrize(
    "name", ["ea-q17+decay", "ea-2+norm+bandwidth+center+gate", "ea-q25r12+gate"]
)
def test_decay_combines_with_expansions_and_options(name):
    torch.manual_seed(0)
    made, x = make_mixer(name, 8, causal=True, short_conv=3).double().eval(), tokens(2, 40, 8)
    u = made.conv(x)[0]
    q, k, v = made.mixer.qkv(u)
    options = dict(log_decay=made.mixer.decay(u).expand_as(u), expansion=made.mixer.expansion)
    same(made(x), made.mixer.out_proj(reference.ea_decayed(q, k, v, **options)[0]))
    state, last = None, made(x)
    for t in range(40):
        y, state = made.step(x[:, t], state)
    same(y, last[:, -1])


def test_set_expansion_keeps_decay():
    model = TransformerEncoder(dim=16, depth=2, mixer="ea-6+decay", causal=True)
    assert set_expansion(model, Quadrature(25)) == 2
    layers = [block.mixer for block in model.blocks]
    assert all(layer.decay is not None and layer.expansion == Quadrature(25) for layer in layers)
    with pytest.raises(ValueError, match="expansion must not be None: exact EA has no decay"):
        set_expansion(model, None)
    assert all(layer.expansion == Quadrature(25) for layer in layers)


def test_repr_shows_expansion():
    series = repr(ElementwiseAttention(7, causal=True))
    assert "dim=7, expansion=Taylor(order=6), causal=True" in series
    assert "dim=7, expansion=None, causal=False" in repr(ElementwiseAttention(7, order=None))


def test_initial_queries_and_keys_are_half_as_large_as_values():
    """EA-6 is then within 2 % of exact EA for inputs of unit variance."""
    torch.manual_seed(0)
    made, x = ElementwiseAttention(256), torch.randn(4, 200, 256)
    q, k, v = made.in_proj(x).detach().split(256, -1)
    assert q.std() == pytest.approx(0.5, rel=0.05) and k.std() == pytest.approx(0.5, rel=0.05)
    assert v.std() == pytest.approx(1.0, rel=0.05)
    assert not made.in_proj.bias.any() and not made.out_proj.bias.any()
    with torch.no_grad():
        series, exact = eattn.ea_series(q, k, v), eattn.ea(q, k, v)
    assert (series - exact).norm() < 0.02 * exact.norm()


@causals
@pytest.mark.parametrize(
    "options", ["", "+norm", "+bandwidth", "+center", "+norm+bandwidth+center"]
)
def test_queries_and_keys_start_in_the_middle_of_the_grid(options, causal):
    """A large initial spread of q and k does not train."""
    torch.manual_seed(0)
    for name in ("ea-q25r12", "ea-q65r16", "ea-q129"):
        made = make_mixer(name + options, 64, causal=causal)
        q, k, _ = made.qkv(torch.randn(4, 200, 64))
        for x in (q.detach(), k.detach()):
            assert (x.abs() < made.expansion.radius / 2).float().mean() > 0.999
            assert x.std() == pytest.approx(0.5, rel=0.1)


def test_float64_state_keeps_its_dtype_with_float32_input():
    made, x = layer(order=6, causal=True).float(), tokens(2, 5, 7).float()
    state = State.zeros(2, 7, order=6, dtype=torch.float64)
    for t in range(5):
        y_t, state = made.step(x[:, t], state)
    assert state.s.dtype == torch.float64 and y_t.dtype == torch.float32
    torch.testing.assert_close(y_t, made(x)[:, 4])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(("causal", "decay"), [(False, None), (True, None), (True, "gated")])
def test_compile_produces_one_graph(causal, decay):
    made = layer(order=6, causal=causal, decay=decay).float()
    x = tokens(2, 9, 7).float().requires_grad_()
    compiled = torch.compile(made, fullgraph=True)
    for key_mask in (None, MASKS["holes"](9)[:2]):
        y, want = compiled(x, key_mask=key_mask), made(x, key_mask=key_mask)
        torch.testing.assert_close(y, want)
        grads, expected = (torch.autograd.grad(z.square().sum(), x) for z in (y, want))
        torch.testing.assert_close(grads, expected)


X, CONTEXT = torch.zeros(2, 5, 12), torch.zeros(2, 4, 12)
FULL, CAUSAL = ElementwiseAttention(12), ElementwiseAttention(12, causal=True)
MASK = torch.ones(2, 5, dtype=torch.bool)
CALLS = {
    "odd order": (lambda: ElementwiseAttention(12, order=5), ValueError, "order must be even"),
    "order 18": (lambda: ElementwiseAttention(12, order=18), ValueError, "between 0 and 16"),
    "a float": (lambda: ElementwiseAttention(12, order=6.0), TypeError, "order must be an int"),
    "no bool": (lambda: ElementwiseAttention(12, bias=1), TypeError, "bias must be a bool"),
    "unknown decay": (
        lambda: ElementwiseAttention(12, causal=True, decay="slow"),
        ValueError,
        "decay must be None or one of fixed, gated, got 'slow'",
    ),
    "decay without order of tokens": (
        lambda: ElementwiseAttention(12, decay="fixed"),
        ValueError,
        "decay='fixed' needs causal=True, got False",
    ),
    "decay of exact EA": (
        lambda: ElementwiseAttention(12, order=None, causal=True, decay="gated"),
        ValueError,
        "decay='gated' needs an order or an expansion: exact EA has no decay",
    ),
    "causal": (lambda: CAUSAL(X, context=CONTEXT), ValueError, "context needs causal=False"),
    "another dim": (lambda: FULL(X, context=CONTEXT[..., 1:]), ValueError, "context must be"),
    "another rank": (lambda: FULL(X, context=CONTEXT[0]), ValueError, "context must be [B, Lk, D]"),
    "integers": (lambda: FULL(X, context=CONTEXT.int()), TypeError, "context must be"),
    "other rows": (lambda: FULL(X, context=CONTEXT[:1]), ValueError, "context"),
    "x": (lambda: FULL(X[0], context=CONTEXT), ValueError, "x must be [B, L, D]"),
    "mask over x": (
        lambda: FULL(X, key_mask=MASK, context=CONTEXT),
        ValueError,
        "key_mask must be [B, Lk]",
    ),
    "a state of order 2": (
        lambda: CAUSAL(X, state=State.zeros(2, 12, order=2)),
        ValueError,
        "the expansion of the call, Taylor(order=6), got Taylor(order=2)",
    ),
    "a step after order 2": (
        lambda: CAUSAL.step(X[:, 0], State.zeros(2, 12, order=2)),
        ValueError,
        "the expansion of the call, Taylor(order=6), got Taylor(order=2)",
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), CALLS.values(), ids=CALLS)
def test_invalid_input_raises(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()
