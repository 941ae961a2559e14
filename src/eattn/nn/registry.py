"""Every mechanism by its name, so that any of them can take another's place."""

import re
from typing import Any

from eattn.nn.aft import AFT
from eattn.nn.attention import ElementwiseAttention
from eattn.nn.base import Mixer
from eattn.nn.conv import Convolved
from eattn.nn.linear import LinearAttention
from eattn.nn.qk_range import Center
from eattn.nn.recurrent import GRU, LinearRNN
from eattn.nn.softmax import SoftmaxAttention
from eattn.ops import Expansion, Quadrature, Taylor
from eattn.ops.expansion import MAX_ORDER, NODE_COUNTS

# One of each; `ea-N` takes any even N, `ea-qN` any odd one.
MIXERS = (
    "ea",
    "ea-2",
    "ea-6",
    "ea-q17",
    "sa",
    "sa-math",
    "la",
    "aft",
    "taylor",
    "gru",
    "linear-rnn",
)
OPTIONS = ("norm", "bandwidth", "center")  # after an EA, with a plus
AFT_LEN = 512  # positions AFT learns when it is not told how many


def make_mixer(
    name: str,
    dim: int,
    *,
    heads: int = 8,
    causal: bool = False,
    max_len: int | None = None,
    short_conv: int | None = None,
) -> Mixer:
    """The mechanism `name` for tokens of `dim` channels: `(x, key_mask=None) -> y`, and `step`.

    `ea` is exact EA, `ea-N` its series to the even power N, `ea-qN` its quadrature with N nodes
    half a unit apart, `sa` softmax attention by SDPA and
    `sa-math` with its weights in memory, `la` linear attention, `aft` the attention-free
    transformer, `taylor` dot products to order 2, `gru` torch's, `linear-rnn` a gated linear
    recurrence. `heads` matters to sa, sa-math, la and taylor; `max_len` to aft, which learns that
    many positions (512 if None), and to the cache of sa and sa-math.

    What keeps q and k of an EA in range goes by name too, after a plus: `ea-6+norm`, `+bandwidth`,
    `+center` (the mean of the keys, or a learned one if causal), in any number; see `QKRange`.

    `short_conv` puts a causal convolution of that width before any of them; see `ShortConv`.

    >>> import torch
    >>> mixer = make_mixer("ea-6", 32, causal=True)
    >>> y_t, state = mixer.step(torch.randn(2, 32))
    >>> y_t.shape, state.nbytes
    (torch.Size([2, 32]), 3840)
    """
    mixer = _plain_mixer(name, dim, heads=heads, causal=causal, max_len=max_len)
    return mixer if short_conv is None else Convolved(mixer, width=short_conv)


def _plain_mixer(name: str, dim: int, *, heads: int, causal: bool, max_len: int | None) -> Mixer:
    expansion = check_mixer(name)
    name, *options = name.split("+")
    match name:
        case "sa" | "sa-math":
            math = name == "sa-math"
            return SoftmaxAttention(
                dim, heads=heads, causal=causal, max_len=max_len, materialise=math
            )
        case "la" | "taylor":
            return LinearAttention(dim, heads=heads, causal=causal, taylor=name == "taylor")
        case "aft":
            return AFT(dim, max_len=AFT_LEN if max_len is None else max_len, causal=causal)
        case "gru":
            return GRU(dim, causal=causal)
        case "linear-rnn":
            return LinearRNN(dim, causal=causal)
    center: Center = "learned" if causal else "mean"
    exact: Any = {"order": None} if expansion is None else {"expansion": expansion}
    return ElementwiseAttention(
        dim,
        **exact,
        causal=causal,
        qk_norm="norm" in options,
        bandwidth="bandwidth" in options,
        center=center if "center" in options else None,
    )


def check_mixer(name: str) -> Expansion | None:
    """The expansion of a series, None for any other known name; ValueError for an unknown one."""
    if not isinstance(name, str):
        raise TypeError(f"mixer must be a name, got {type(name).__name__}")
    whole, (name, *options) = name, name.split("+")
    series = re.fullmatch(r"ea-(q?)(\d+)", name)
    if series is None and name not in MIXERS:
        known = ", ".join(MIXERS)
        raise ValueError(
            f"unknown mixer {whole!r}: known are {known} (ea-N for any even N, ea-qN for any odd N)"
        )
    if wrong := [option for option in options if option not in OPTIONS or name[:2] != "ea"]:
        raise ValueError(
            f"unknown mixer {whole!r}: +{wrong[0]} is none of"
            f" {', '.join('+' + option for option in OPTIONS)}, which go after ea, ea-N and ea-qN"
        )
    if series is None:
        return None
    try:
        number = int(series[2])
        return Quadrature(number) if series[1] else Taylor(number)
    except ValueError:
        raise ValueError(
            f"mixer 'ea-N' needs an even N from 0 to {MAX_ORDER},"
            f" 'ea-qN' an odd N from {NODE_COUNTS[0]} to {NODE_COUNTS[-1]}, got {name!r}"
        ) from None
