"""Mixers to test, their inputs, and their outputs by the formula, in float64.

`literal` computes the output of a mixer from its parameters: attention with `reference`, one head
at a time, and recurrences one token at a time.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from eattn.nn import MIXERS, Decay, Mixer, ShortConv, make_mixer
from eattn.ops import reference

PLAIN = (*MIXERS, "ea-0", "ea-12", "ea-q65r16")
# ~4: with a convolution of width 4
CONVOLVED = ("ea-6~4", "ea~2", "sa~4", "la~1", "gru~5", "deltanet~4")
NAMES = (*PLAIN, *CONVOLVED)
SERIES = tuple(name for name in PLAIN if name.startswith("ea-"))
HEADED = (
    *("sa", "sa-math", "sa+rope", "la", "la+gate", "taylor", "deltanet"),
    *("sa~4", "la~1", "deltanet~4"),
)
DECAYED = ("ea-6+decay", "ea-6+gate")
CAUSAL_ONLY = (*DECAYED, "deltanet", "la+gate", "deltanet~4")
CACHED = ("ea", "sa", "sa-math", "sa+rope", "aft")  # their state grows with every token
CONSTANT = tuple(name for name in NAMES if name.partition("~")[0] not in CACHED)

names = pytest.mark.parametrize("name", NAMES)
MODES = {"grad": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}
modes = pytest.mark.parametrize("mode", MODES)
causals = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def forms(names: Iterable[str]) -> list[tuple[str, bool]]:
    """Return each name with each value of `causal` that the mixer accepts."""
    return [(n, c) for n in names for c in (False, True) if c or n not in CAUSAL_ONLY]


both_forms = pytest.mark.parametrize(("name", "causal"), forms(NAMES))


def make(
    name: str,
    dim: int = 12,
    *,
    heads: int = 3,
    causal: bool,
    max_len: int | None = None,
    seed: int = 0,
) -> Mixer:
    """Make a float64 mixer with random parameters, as biases start at 0; rates of decay stay."""
    if name == "aft" and max_len is None:
        max_len = 300
    options = dict(heads=heads, causal=causal, max_len=max_len)
    mixer = fresh(name, dim, **options).double()
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in mixer.named_parameters():
        if name == "decay.bias":
            continue
        spread = 0.3 if parameter.dim() == 1 else 0.5 * parameter.shape[-1] ** -0.5
        noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
        parameter.data.copy_(spread * noise)
    return mixer


def fresh(name: str, dim: int, **options) -> Mixer:
    """Call `make_mixer`, with short_conv=4 for names such as `ea-6~4`."""
    name, _, width = name.partition("~")
    return make_mixer(name, dim, **options, short_conv=int(width) if width else None)


def tokens(B: int, L: int, dim: int = 12, seed: int = 1) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(B, L, dim, generator=rng, dtype=torch.float64)


# Masks [3, L] of valid tokens
def _holes(L: int) -> Tensor:
    mask = torch.rand(3, L, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[:, L // 2] = True
    return mask


def _right(L: int) -> Tensor:
    return torch.arange(L) < torch.tensor([[L], [L // 2], [1]])


def _left(L: int) -> Tensor:
    return _right(L).flip(1)


def _blind(L: int) -> Tensor:
    mask = _holes(L)
    mask[1] = False
    return mask


MASKS: dict[str, Callable[[int], Tensor]] = {
    "holes": _holes,
    "left-padded": _left,
    "right-padded": _right,
    "a row without tokens": _blind,
}


def every_mask(L: int) -> Tensor:
    """Return all kinds of masks in one batch, [12, L]."""
    return torch.cat([mask(L) for mask in MASKS.values()])


def same(got: object, want: object) -> None:
    """Assert equality up to float64 rounding, which EA-12 amplifies about a thousand times."""
    assert_close(got, want, rtol=1e-9, atol=1e-10)


def differentiate(
    mixer: Mixer,
    x: Tensor,
    y: Tensor,
    valid: Tensor | None = None,
    *,
    context: Tensor | None = None,
) -> list[Tensor]:
    """Return y and, from its valid tokens, the gradients of x, context and parameters."""
    rng = torch.Generator().manual_seed(3)
    gy = torch.randn(y.shape, generator=rng, dtype=torch.float64)
    if valid is not None:
        y, gy = y[valid], gy[valid]
    inputs = [x, *([] if context is None else [context]), *mixer.parameters()]
    # materialize_grads: the output for a single token does not depend on all parameters
    return [y.detach(), *torch.autograd.grad(y, inputs, gy, materialize_grads=True)]


def literal(mixer: Mixer, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Return the output of the mixer at every valid token by its formula."""
    if key_mask is not None:
        x = torch.where(key_mask.unsqueeze(-1), x, 0.0)
    kind = type(mixer).__name__
    if kind == "Convolved":
        return literal(mixer.mixer, _convolved(mixer.conv, x, key_mask), key_mask)
    if kind == "GRU":
        return F.linear(_gru(mixer, x, key_mask), *_weights(mixer.out_proj))
    if kind == "LinearRNN":
        return F.linear(_linear_rnn(mixer, x, key_mask), *_weights(mixer.out_proj))
    if kind in ("DeltaNet", "GatedLinearAttention"):
        formula = _deltanet if kind == "DeltaNet" else _gated
        return F.linear(formula(mixer, x, key_mask), *_weights(mixer.out_proj))
    q, k, v = F.linear(x, *_weights(mixer.in_proj)).split(mixer.dim, -1)
    seen = dict(causal=mixer.causal, key_mask=key_mask)
    if kind == "AFT":  # Eq. 19
        w = mixer.w[: x.shape[1], : x.shape[1]]
        y = torch.sigmoid(q) * reference.aft(k, v, w, **seen)
    elif kind == "ElementwiseAttention":
        if mixer.expansion is None:
            y = reference.ea(q, k, v, **seen)
        elif mixer.decay is not None:
            options = dict(expansion=mixer.expansion, key_mask=key_mask)
            y = reference.ea_decayed_quadratic(q, k, v, _log_decay(mixer.decay, x), **options)
        else:
            y = reference.ea_expanded(q, k, v, expansion=mixer.expansion, **seen)
    else:
        y = torch.cat([_head(mixer, *qkv, seen) for qkv in _heads(mixer, q, k, v)], -1)
    return F.linear(y, *_weights(mixer.out_proj))


def _log_decay(decay: Decay, x: Tensor) -> Tensor:
    """Return log(sigmoid(b)), or log(sigmoid(W_2 W_1 x + b)) for a gate."""
    if decay.gate_down is None:
        return torch.sigmoid(decay.bias).log()
    gate = F.linear(F.linear(x, decay.gate_down.weight), decay.gate_up.weight, decay.bias)
    return torch.sigmoid(gate).log()


def _convolved(conv: ShortConv, x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Compute u_t = x_t + b + sum_i w_i x_(t - i) over the valid tokens of each row."""
    rows = []
    everything = torch.ones(x.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
    for tokens, mask in zip(x, everything, strict=True):
        out = list(torch.zeros_like(tokens))
        valid = mask.nonzero().flatten().tolist()
        for n, t in enumerate(valid):
            near = [conv.weight[i] * tokens[valid[n - i]] for i in range(min(conv.width, n + 1))]
            out[t] = tokens[t] + conv.bias + sum(near)
        rows.append(torch.stack(out))
    return torch.stack(rows)


def _weights(linear: torch.nn.Linear) -> tuple[Tensor, Tensor]:
    return linear.weight, linear.bias


def _heads(mixer: Mixer, q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[Tensor, ...]]:
    d = mixer.dim // mixer.heads
    return zip(q.split(d, -1), k.split(d, -1), v.split(d, -1), strict=True)


def _head(mixer: Mixer, q: Tensor, k: Tensor, v: Tensor, seen: dict) -> Tensor:
    if getattr(mixer, "rope", False):
        valid = seen["key_mask"]
        every = torch.ones(q.shape[:2], dtype=torch.bool) if valid is None else valid
        q, k = (reference.rope(z, every.cumsum(1)) for z in (q, k))
    scaled = q / math.sqrt(q.shape[-1])
    if not hasattr(mixer, "taylor"):
        return reference.sa(scaled, k, v, **seen)  # Eq. 17
    if mixer.taylor:
        return reference.taylor_dot(scaled, k, v, order=2, **seen)  # Eq. 20
    return reference.la(q, k, v, **seen)  # Eq. 18


def _deltanet(mixer: Mixer, x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Compute the delta rule for keys of length 1, and divide by the root mean square per head."""
    q, k, v = F.silu(F.linear(x, *_weights(mixer.in_proj))).split(mixer.dim, -1)
    beta = torch.sigmoid(F.linear(x, *_weights(mixer.beta_proj)))
    if key_mask is not None:
        beta = torch.where(key_mask.unsqueeze(-1), beta, 0.0)
    y = []
    for (q1, k1, v1), b in zip(_heads(mixer, q, k, v), beta.unbind(-1), strict=True):
        q1, k1 = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q1, k1))
        y.append(_normalised(mixer, reference.delta_rule(q1, k1, v1, b)))
    return torch.cat(y, -1)


def _gated(mixer: Mixer, x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Compute gated linear attention, normalised per head and gated by silu(r)."""
    q, k, v, r = F.linear(x, *_weights(mixer.in_proj)).split(mixer.dim, -1)
    gate = F.linear(F.linear(x, mixer.gate_down.weight), *_weights(mixer.gate_up))
    g = torch.sigmoid(gate).log() / 16
    if key_mask is not None:
        k, g = (torch.where(key_mask.unsqueeze(-1), z, 0.0) for z in (k, g))
    d = mixer.dim // mixer.heads
    heads = zip(*(z.split(d, -1) for z in (q / math.sqrt(d), k, v, g)), strict=True)
    y = torch.cat([_normalised(mixer, reference.gated_la(*head)) for head in heads], -1)
    return y * F.silu(r)


def _normalised(mixer: Mixer, y: Tensor) -> Tensor:
    return y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.norm.weight


def _walk(
    x: Tensor, key_mask: Tensor | None, h: Tensor, cell: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Apply h = cell(x_t, h) to valid tokens in order, [B, L, D] -> [B, L, width]."""
    after = []
    for t in range(x.shape[1]):
        new = cell(x[:, t], h)
        h = new if key_mask is None else torch.where(key_mask[:, t, None], new, h)
        after.append(h)
    return torch.stack(after, 1)


def _both_ways(
    mixer: Mixer, x: Tensor, key_mask: Tensor | None, cells: list[Callable[..., Tensor]]
) -> Tensor:
    h = x.new_zeros(len(x), mixer.width)
    forward = _walk(x, key_mask, h, cells[0])
    if mixer.causal:
        return forward
    flipped = None if key_mask is None else key_mask.flip(1)
    return torch.cat([forward, _walk(x.flip(1), flipped, h, cells[1]).flip(1)], -1)


def _gru(mixer: Mixer, x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Compute r, z = sigmoid(...), n = tanh(W x + b + r (U h + c)), h = (1 - z) n + z h."""

    def cell(direction: str) -> Callable[[Tensor, Tensor], Tensor]:
        w, u, b, c = (
            getattr(mixer.gru, f"{kind}_l0{direction}")
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )

        def step(x_t: Tensor, h: Tensor) -> Tensor:
            (xr, xz, xn), (hr, hz, hn) = (
                F.linear(x_t, w, b).chunk(3, -1),
                F.linear(h, u, c).chunk(3, -1),
            )
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            return (1 - z) * torch.tanh(xn + r * hn) + z * h

        return step

    directions = [""] if mixer.causal else ["", "_reverse"]
    return _both_ways(mixer, x, key_mask, [cell(direction) for direction in directions])


def _linear_rnn(mixer: Mixer, x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Compute h_t = a_t h_(t-1) + (1 - a_t) u_t, gated by silu(g_t)."""
    ways = 1 if mixer.causal else 2
    a, u, g = (part.chunk(ways, 0) for part in mixer.in_proj.weight.chunk(3, 0))
    a0, u0, g0 = (part.chunk(ways, 0) for part in mixer.in_proj.bias.chunk(3, 0))

    def cell(way: int) -> Callable[[Tensor, Tensor], Tensor]:
        def step(x_t: Tensor, h: Tensor) -> Tensor:
            keep = torch.sigmoid(F.linear(x_t, a[way], a0[way]))
            return keep * h + (1 - keep) * F.linear(x_t, u[way], u0[way])

        return step

    h = _both_ways(mixer, x, key_mask, [cell(way) for way in range(ways)])
    gates = [F.silu(F.linear(x, g[way], g0[way])) for way in range(ways)]
    return h * torch.cat(gates, -1)
