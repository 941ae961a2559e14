"""`eattn reproduce fig1`: EA from scores over weights to y on real tensors, and how spiky it is.

The paper's Figure 1 is a drawing of Eq. 1 and Eq. 2; here one channel of one sequence goes through
them, exactly and as a series. Spikiness is measured on the same q and k as the entropy of the
weights, beside self-attention and linear attention. Everything is float64 and literal.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eattn.ops import reference
from paper.bench import show
from paper.bench.measure import Row
from paper.report import fig1 as picture
from paper.report import plots
from paper.reproduce import publish, significant

L, D = 32, 64
SMOOTH = 1.5  # tokens: neighbours are alike, as in a real sequence, and the maps can be read
FACTORS = (0.5, 1.0, 2.0)  # of sigma, for the entropies
LARGEST = 4.0  # beyond it the literal e^(-k^2) comes near to underflow


class Tensors(NamedTuple):
    """One sequence, [L, D] each, float64."""

    q: Tensor
    k: Tensor
    v: Tensor


def run(console: Console, out: Path, *, sigma: float = 1.0, seed: int = 0) -> list[Path]:
    """Rows to out/fig1.jsonl, a picture from that file, and the facts on the console."""
    if not 0 < sigma <= LARGEST:
        raise ValueError(f"sigma must be above 0 and at most {LARGEST:g}, got {sigma:g}")
    if seed < 0:
        raise ValueError(f"seed must be 0 or above, got {seed}")
    plots.need_matplotlib()
    path = publish("fig1", measure(sigma, seed), out)
    files = [path, *picture.redraw(path)]
    for fact in facts(plots.read_rows(path)):
        console.print(fact, highlight=False)
    return files


def tensors(sigma: float, seed: int) -> Tensors:
    """A smooth random signal through random projections; q and k scaled to deviation sigma, v to 1.

    The same seed gives the same q and k for any sigma, up to the scale.
    """
    rng = torch.Generator().manual_seed(seed)
    token = torch.arange(L, dtype=torch.float64)
    near = torch.exp(-((token[:, None] - token) ** 2) / (2 * SMOOTH**2))
    x = near / near.norm(dim=1, keepdim=True) @ _normal(rng, L, D)
    q, k, v = (x @ _normal(rng, D, D) for _ in range(3))
    return Tensors(*(scale * y / y.std() for scale, y in ((sigma, q), (sigma, k), (1.0, v))))


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


# ---- weights of query i on key j, [i, j, channels]; those of a head are one channel --------------


def scores(q: Tensor, k: Tensor) -> Tensor:
    """o_ij = -(q_i - k_j)^2 (Eq. 1)."""
    return -((q[:, None] - k[None]) ** 2)


def ea(q: Tensor, k: Tensor) -> Tensor:
    """softmax_j(o_ij), one map per channel (Eq. 2)."""
    return scores(q, k).softmax(dim=1)


def ea_series(order: int) -> Callable[[Tensor, Tensor], Tensor]:
    """As `ea`, with e^(2qk) cut to its Taylor polynomial (Eq. 5)."""

    def weights(q: Tensor, k: Tensor) -> Tensor:
        terms = reference.taylor(order, q) * reference.powers(q, order)  # [i, D, N]
        polynomial = torch.einsum("icn,jcn->ijc", terms, reference.powers(k, order))
        return _normalised(torch.exp(-(k**2)) * polynomial)

    return weights


def sa(q: Tensor, k: Tensor) -> Tensor:
    """softmax_j(q_i k_j^T / sqrt(D)), one head of all channels (Eq. 17, scaled as is usual)."""
    return (q @ k.T / math.sqrt(q.shape[1])).softmax(dim=1)[:, :, None]


def la(q: Tensor, k: Tensor) -> Tensor:
    """phi(q_i) phi(k_j)^T, normalised; phi(x) = elu(x) + 1; one head of all channels (Eq. 18)."""
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return _normalised((phi_q @ phi_k.T)[:, :, None])


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=1, keepdim=True)


FORMS = {"EA": ea, "EA-6": ea_series(6), "EA-2": ea_series(2)}
# EA-0 is e^(-k^2) alone, the same weights for every query: how spiky EA is when q is ignored.
MECHANISMS = {"SA": sa, "LA": la, **FORMS, "EA-0": ea_series(0)}


def entropy(weights: Tensor) -> Tensor:
    """-sum_j w_ij log w_ij / log L: 1 when all keys weigh the same, 0 when one has it all."""
    return torch.special.entr(weights).sum(dim=1) / math.log(weights.shape[1])


# ---- rows ----------------------------------------------------------------------------------------


def measure(sigma: float, seed: int) -> Iterator[Row]:
    """One channel step by step, then the entropy of every mechanism at several sigma."""
    config = {"seed": seed, "L": L, "D": D, "smooth": SMOOTH, "dtype": "float64"}
    q, k, v = tensors(sigma, seed)
    exact = ea(q, k)
    exact_y = y_of(exact, v)
    c = typical_channel(y_of(FORMS["EA-6"](q, k), v), exact_y)
    here = config | {"sigma": sigma, "channel": c}
    inputs = {
        name: significant(x[:, c].tolist(), 6) for name, x in zip("qkv", (q, k, v), strict=True)
    }
    yield here | {"what": "inputs"} | inputs
    yield here | {"what": "scores", "o": _matrix(scores(q, k)[:, :, c])}
    for name, form in FORMS.items():
        weights = form(q, k)
        y = y_of(weights, v)
        yield here | {
            "what": "weights",
            "who": name,
            "weights": _matrix(weights[:, :, c]),
            "y": significant(y[:, c].tolist(), 6),
            "misplaced": float(misplaced(weights, exact)[c]),
            "misplaced_all": float(misplaced(weights, exact).mean()),
            "error_all": float((y - exact_y).norm() / exact_y.norm()),
        }
    for factor in FACTORS:
        scale = factor * sigma
        for name, mechanism in MECHANISMS.items():
            found = spread(mechanism(factor * q, factor * k))
            yield config | {"what": "entropy", "who": name, "sigma": scale} | found


def y_of(weights: Tensor, v: Tensor) -> Tensor:
    """y_i = sum_j w_ij v_j, per channel: [i, j, D], [j, D] -> [i, D]."""
    return (weights * v).sum(dim=1)


def typical_channel(y: Tensor, exact: Tensor) -> int:
    """The channel whose error is the median of all: neither the best to show nor the worst."""
    error = (y - exact).norm(dim=0) / exact.norm(dim=0)
    return int(error.argsort()[len(error) // 2])


def misplaced(weights: Tensor, exact: Tensor) -> Tensor:
    """What share of a query's weight lies on other keys than in `exact`, mean over i: [D]."""
    return (weights - exact).abs().sum(dim=1).mean(dim=0) / 2


def spread(weights: Tensor) -> Row:
    """Mean entropy over queries and channels, and the quantiles."""
    found = entropy(weights).flatten()
    p20, p80 = found.quantile(torch.tensor([0.2, 0.8], dtype=found.dtype)).tolist()
    return {"entropy": float(found.mean()), "p20": p20, "p80": p80}


def _matrix(x: Tensor) -> list[list[float]]:
    return [significant(row, 4) for row in x.tolist()]


# ---- the same in a terminal ----------------------------------------------------------------------


def facts(rows: Sequence[Row]) -> list[Table | str]:
    """What the picture says, in numbers."""
    weights = [row for row in rows if row["what"] == "weights"]
    forms = show.table(f"all channels, σ = {weights[0]['sigma']:g}", "weight misplaced", "y off by")
    for row in weights[1:]:
        forms.add_row(
            row["who"], plots.percent(row["misplaced_all"]), plots.percent(row["error_all"])
        )
    found = {(row["who"], row["sigma"]): row["entropy"] for row in rows if row["what"] == "entropy"}
    sigmas = sorted({sigma for _, sigma in found})
    table = show.table("entropy of the weights", *(f"σ = {sigma:g}" for sigma in sigmas))
    for name in MECHANISMS:
        table.add_row(name, *(f"{found[name, sigma]:.3f}" for sigma in sigmas))
    return [forms, table, *judge(found, sigmas)]


def judge(found: dict[tuple[str, float], float], sigmas: Sequence[float]) -> Iterator[str]:
    """The paper's claim, that EA and its series keep the spikiness LA loses, by the numbers."""
    yield "1 is uniform, lower is spikier. SA, LA: one head. EA-0: e^(-k²) alone, q ignored."
    for sigma in sigmas:
        series = [name for name in FORMS if name != "EA"]
        spikier = [name for name in FORMS if found[name, sigma] < found["LA", sigma]]
        flat = [name for name in series if found[name, sigma] >= found["EA-0", sigma]]
        line = f"σ = {sigma:g}: spikier than LA: {', '.join(spikier) or 'none'}"
        if flat:
            line += f"; no spikier than without q: {', '.join(flat)}"
        yield line
