"""One step of a `QuantileForecaster` in NumPy: a tenth of the time that PyTorch takes for it.

For single tokens, calling an operator takes longer than its arithmetic, and NumPy's operators are
cheap to call. Supports the default encoder: element-wise attention with a Taylor polynomial and a
fixed decay, after a short convolution.
"""

from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf  # type: ignore[import-untyped]
from torch import Tensor, nn

from eattn.models import QuantileForecaster
from eattn.models.quantile_forecaster import FARTHEST, UNIT
from eattn.nn.attention import ElementwiseAttention
from eattn.nn.conv import Convolved
from eattn.ops.expansion import Taylor

Array = NDArray[np.float64]
Arrays = dict[str, Array]  # of a state, by layer and name
ROOT_HALF = 0.5**0.5


def fast_model(model: QuantileForecaster) -> "FastModel | None":
    """Return the model in NumPy, or None if its encoder is not supported."""
    for block in model.encoder.blocks:
        mixer = getattr(block.mixer, "mixer", None)
        if not (
            isinstance(block.mixer, Convolved)
            and isinstance(mixer, ElementwiseAttention)
            and isinstance(mixer.expansion, Taylor)
            and mixer.placement is None
            and mixer.decay is not None
            and mixer.decay.gate_down is None
            and block.config.norm == "pre"
        ):
            return None
    return FastModel(model)


class FastModel:
    """Weights of a model as arrays, and its functions `step` and `quantiles`."""

    def __init__(self, model: QuantileForecaster) -> None:
        self.embed, self.from_state = _Linear(model.embed), _Linear(model.from_state)
        self.from_step, self.hidden = _Linear(model.from_step), _Linear(model.hidden)
        self.head, self.direct = _Linear(model.head), _Linear(model.direct)
        self.blocks = [_Block(block, str(i)) for i, block in enumerate(model.encoder.blocks)]
        self.norm = _Norm(model.encoder.norm)
        self.rules, self.plain, self.below = model.rules, model.plain, model.below
        self.gaps = _array(model.gaps)

    def step(self, token: Any, state: Arrays) -> tuple[Array, Arrays]:
        """Return the output of the encoder [B, D] for one token [B, T], and the state after it."""
        x, after = self.embed(token.astype(self.gaps.dtype, copy=False)), Arrays()
        for block in self.blocks:
            x = block.step(x, state, after)
        return self.norm(x), after

    def quantiles(self, state: Array, rules: Array, features: Any) -> Array:
        """Return quantiles [..., H, levels] from outputs of the encoder [..., D]."""
        own = self.gaps.dtype
        step = np.concatenate([np.arcsinh(rules), features], -1).astype(own, copy=False)
        state = state.astype(own, copy=False)
        hidden = _gelu(self.from_state(state)[..., None, :] + self.from_step(step))
        hidden = hidden + _gelu(self.hidden(hidden))
        y = self.head(hidden) + self.direct(features[..., : self.plain].astype(own, copy=False))
        naive = rules[..., :1]
        apart = np.maximum(np.minimum(rules - naive, FARTHEST), -FARTHEST)  # faster than clip
        n = self.rules
        median = naive + (y[..., :n] * apart).sum(-1, keepdims=True) + y[..., n : n + 1]
        positive = np.logaddexp(0.0, y[..., n + 1 :] + UNIT)  # softplus
        gaps = self.gaps * positive[..., 1:] * positive[..., :1]
        lower = gaps[..., : self.below][..., ::-1].cumsum(-1)[..., ::-1]
        upper = gaps[..., self.below :].cumsum(-1)
        return np.concatenate([median - lower, median, median + upper], -1)


class _Block:
    """A Transformer block with element-wise attention; see `eattn.nn.TransformerBlock`."""

    def __init__(self, block: Any, name: str) -> None:
        convolved, mixer = block.mixer, block.mixer.mixer
        self.norm_mixer, self.norm_ffn = _Norm(block.norm_mixer), _Norm(block.norm_ffn)
        self.up, self.down = _Linear(block.ffn.up), _Linear(block.ffn.down)
        self.in_proj, self.out_proj = _Linear(mixer.in_proj), _Linear(mixer.out_proj)
        self.taps = _array(convolved.conv.weight)  # [width, D], newest first
        self.bias = _array(convolved.conv.bias)
        self.log_decay = -np.logaddexp(0.0, -_array(mixer.decay.bias))  # logsigmoid
        self.order = mixer.expansion.order
        coefficients = [2**n / factorial(n) for n in range(self.order + 1)]  # Eq. 7
        self.coefficients = np.array(coefficients, self.taps.dtype)
        self.names = {part: f"{name}.{part}" for part in ("conv", "s", "z", "shift", "log_decay")}

    def step(self, x: Array, state: Arrays, after: Arrays) -> Array:
        conv, s, z, shift, log_decay = (state[name] for name in self.names.values())
        u = self.norm_mixer(x)
        window = np.concatenate([conv, u[:, None]], 1)
        u = u + self.bias + (window[:, ::-1] * self.taps).sum(1)
        u, dim = self.in_proj(u), x.shape[-1]
        q, k, v = u[:, :dim], u[:, dim : 2 * dim], u[:, 2 * dim :]
        # The shift m obeys m'^2 = min(m^2 - g, k^2); see `eattn.ops.moves`.
        moved, square = shift * shift - self.log_decay, k * k
        new = np.minimum(moved, square)
        old, weight = np.exp(new - moved)[..., None], np.exp(new - square)[..., None]
        weight = weight * _powers(k, self.order)
        s, z = s * old + weight * v[..., None], z * old + weight
        powers = _powers(q, self.order) * self.coefficients
        y = self.out_proj((powers * s).sum(-1) / (powers * z).sum(-1))
        values = (window[:, 1:], s, z, np.sqrt(new), log_decay + self.log_decay)
        for name, value in zip(self.names.values(), values, strict=True):
            after[name] = value.astype(conv.dtype, copy=False)
        x = x + y
        result: Array = x + self.down(_gelu(self.up(self.norm_ffn(x))))
        return result


class _Linear:
    def __init__(self, layer: nn.Linear) -> None:
        self.weight = np.ascontiguousarray(_array(layer.weight).T)
        self.bias = 0.0 if layer.bias is None else _array(layer.bias)

    def __call__(self, x: Array) -> Array:
        result: Array = x @ self.weight + self.bias
        return result


class _Norm:
    def __init__(self, layer: Any) -> None:
        self.weight, self.bias, self.eps = _array(layer.weight), _array(layer.bias), layer.eps
        self.mean = np.full((len(self.weight), 1), 1 / len(self.weight), self.weight.dtype)

    def __call__(self, x: Array) -> Array:
        x = x - x @ self.mean  # faster than np.mean
        variance = (x * x) @ self.mean
        result: Array = x / np.sqrt(variance + self.eps) * self.weight + self.bias
        return result


def _powers(x: Array, order: int) -> Array:
    """Return x^n for n = 0..order: [..., order + 1]."""
    powers = np.empty((*x.shape, order + 1), x.dtype)
    powers[..., 0] = 1.0
    powers[..., 1:] = x[..., None]
    result: Array = np.multiply.accumulate(powers, -1)
    return result


def _gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1.0 + erf(x * ROOT_HALF))
    return result


def _array(x: Tensor) -> Array:
    return x.detach().cpu().numpy()
