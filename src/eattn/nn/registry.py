"""Make mixers by name, such as "ea-6" or "sa"."""

import re
from typing import Any

from eattn._checks import check_bool
from eattn.nn.aft import AFT
from eattn.nn.attention import ElementwiseAttention
from eattn.nn.base import Mixer, check_causal_only
from eattn.nn.conv import Convolved
from eattn.nn.decay import DecayKind
from eattn.nn.deltanet import DeltaNet
from eattn.nn.gated import GatedLinearAttention
from eattn.nn.linear import LinearAttention
from eattn.nn.qk_range import Center
from eattn.nn.recurrent import GRU, LinearRNN
from eattn.nn.softmax import SoftmaxAttention
from eattn.ops import Expansion, Quadrature, Taylor
from eattn.ops.expansion import MAX_ORDER, NODE_COUNTS

# One name of each kind. `ea-N` accepts any even N up to 16, `ea-qN` any odd N from 5 to 1025.
MIXERS = (
    "ea",
    "ea-2",
    "ea-6",
    "ea-q17",
    "ea-6+decay",
    "ea-6+gate",
    "sa",
    "sa-math",
    "sa+rope",
    "la",
    "la+gate",
    "deltanet",
    "aft",
    "taylor",
    "gru",
    "linear-rnn",
)
# Options of a kind of mixer, the part of its name before "-", as in "ea-6+norm"
OPTIONS = {
    "ea": ("norm", "bandwidth", "center", "decay", "gate"),
    "sa": ("rope",),
    "la": ("gate",),
}
DECAYS: dict[str, DecayKind] = {"decay": "fixed", "gate": "gated"}  # options of EA that forget
AFT_LEN = 512  # default max_len of AFT


def make_mixer(
    name: str,
    dim: int,
    *,
    heads: int = 8,
    causal: bool = False,
    max_len: int | None = None,
    short_conv: int | None = None,
) -> Mixer:
    """Make a mixer by name.

    ==============  ==========================================================================
    name            mixer
    ==============  ==========================================================================
    ``ea``          exact element-wise attention
    ``ea-N``        its Taylor series to the even power N
    ``ea-qN``       its quadrature with N nodes, 0.5 apart, such as ``ea-q25``
    ``ea-qNrR``     its quadrature with N nodes over [-R, R], such as ``ea-q25r12``
    ``sa``          softmax attention by SDPA
    ``sa-math``     softmax attention with its weights in memory
    ``la``          linear attention
    ``deltanet``    linear attention with the delta rule; causal only
    ``aft``         attention-free transformer
    ``taylor``      dot-product attention with a Taylor polynomial of order 2
    ``gru``         PyTorch's GRU
    ``linear-rnn``  gated linear recurrence
    ==============  ==========================================================================

    Options follow the name, as in ``ea-6+norm``. Names that start with ``ea`` take any of
    ``+norm``, ``+bandwidth`` and ``+center`` (the mean of the keys, or a learned center if causal);
    see `QKRange`. All of them but ``ea`` also take ``+decay`` or ``+gate``, which forget earlier
    tokens at a learned rate per channel, or at a rate that depends on the token; see `Decay`;
    causal only. ``sa+rope`` and ``sa-math+rope`` have rotary positions. ``la+gate`` is gated linear
    attention, which forgets; causal only.

    Parameters
    ----------
    name : str
        Name and options of the mixer.
    dim : int
        Number of channels D.
    heads : int, default 8
        Number of heads of sa, sa-math, la, taylor and deltanet.
    causal : bool, default False
        Attend only to earlier tokens and the token itself. Required for decoding.
    max_len : int, optional
        Number of positions of aft (512 by default), and capacity of the cache of sa and sa-math.
    short_conv : int, optional
        Width of a causal convolution before the mixer; see `ShortConv`.

    Returns
    -------
    mixer : Mixer

    Examples
    --------
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
    whole, (name, *options) = name, name.split("+")
    match name:
        case "sa" | "sa-math":
            return SoftmaxAttention(
                dim,
                heads=heads,
                causal=causal,
                max_len=max_len,
                materialise=name == "sa-math",
                rope="rope" in options,
            )
        case "la" if "gate" in options:
            return GatedLinearAttention(dim, heads=heads, causal=causal)
        case "la" | "taylor":
            return LinearAttention(dim, heads=heads, causal=causal, taylor=name == "taylor")
        case "deltanet":
            return DeltaNet(dim, heads=heads, causal=causal)
        case "aft":
            return AFT(dim, max_len=AFT_LEN if max_len is None else max_len, causal=causal)
        case "gru":
            return GRU(dim, causal=causal)
        case "linear-rnn":
            return LinearRNN(dim, causal=causal)
    decays = [option for option in options if option in DECAYS]
    if decays and not check_bool("causal", causal):
        check_causal_only(whole, causal, instead=without_decay(whole))
    center: Center = "learned" if causal else "mean"
    exact: Any = {"order": None} if expansion is None else {"expansion": expansion}
    return ElementwiseAttention(
        dim,
        **exact,
        causal=causal,
        qk_norm="norm" in options,
        bandwidth="bandwidth" in options,
        center=center if "center" in options else None,
        decay=DECAYS[decays[0]] if decays else None,
    )


def without_decay(name: str) -> str:
    """Return the name of the mixer that does not forget: "ea-6+norm" for "ea-6+norm+gate"."""
    return "+".join(part for part in name.split("+") if part not in DECAYS)


def check_mixer(name: str) -> Expansion | None:
    """Check the name of a mixer, as `make_mixer` takes it.

    Parameters
    ----------
    name : str
        Name and options of the mixer.

    Returns
    -------
    expansion : Taylor, Quadrature or None
        Expansion of ``ea-N``, ``ea-qN`` and ``ea-qNrR``; None for other mixers.

    Raises
    ------
    ValueError
        If the name is unknown, or N or R is out of range.
    """
    if not isinstance(name, str):
        raise TypeError(f"mixer must be a name, got {type(name).__name__}")
    whole, (name, *options) = name, name.split("+")
    series = re.fullmatch(r"ea-(?:(\d+)|q(\d+)(?:r(\d+(?:\.\d+)?))?)", name)
    if series is None and name not in MIXERS:
        known = ", ".join(MIXERS)
        raise ValueError(
            f"unknown mixer {whole!r}: use one of {known}, or ea-N with another even N, ea-qN with"
            " another odd N, ea-qNrR with a radius R"
        )
    allowed = OPTIONS.get(name.partition("-")[0], ())
    if wrong := [option for option in options if option not in allowed]:
        known = ", ".join("+" + option for option in allowed) or "none"
        raise ValueError(
            f"unknown mixer {whole!r}: got +{wrong[0]}, but the only options of {name} are: {known}"
        )
    if name.startswith("ea"):
        _check_decays(whole, name, [option for option in options if option in DECAYS])
    if series is None:
        return None
    order, nodes, radius = series.groups()
    try:
        if order:
            return Taylor(int(order))
        return Quadrature(int(nodes), float(radius)) if radius else Quadrature(int(nodes))
    except ValueError as error:
        if nodes and int(nodes) in NODE_COUNTS:
            raise ValueError(f"mixer {name!r}: {error}") from None  # the radius is out of range
        raise ValueError(
            f"mixer 'ea-N' needs an even N from 0 to {MAX_ORDER},"
            f" 'ea-qN' an odd N from {NODE_COUNTS[0]} to {NODE_COUNTS[-1]}, got {name!r}"
        ) from None


def _check_decays(whole: str, name: str, decays: list[str]) -> None:
    if len(set(decays)) > 1:
        raise ValueError(f"mixer {whole!r}: use only one of +decay and +gate")
    if decays and name == "ea":
        raise ValueError(
            f"mixer {whole!r}: exact EA has no +{decays[0]}; use an expansion, such as"
            f" 'ea-6+{decays[0]}' or 'ea-q25r12+{decays[0]}'"
        )
