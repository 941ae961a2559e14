"""Figure 1: from q and k to y, and how spiky the weights are.

The paper draws the computation; here one channel of a random sequence goes through Eq. 1 and
Eq. 2, exactly (EA) and as a series. The sequence is a smooth signal of 32 tokens through random
projections to 64 channels, with q and k scaled to standard deviation σ; the channel shown has the
median error of EA-6. Misplaced weight lies on other keys than in EA. The entropy of the weights
measures how spiky they are, next to one head of softmax attention (SA) and of linear attention (LA)
on the same q and k. EA-0 is e^(−k²) alone, which ignores q.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import torch
from torch import Tensor

from eattn.ops import reference
from paper.harness import chart
from paper.harness.chart import DASHED, GREEN, GREY, PURPLE, Chart, Look, Panel, dots, lines
from paper.harness.measure import significant
from paper.harness.runlog import Row, RunLog, find_row, rows_of
from paper.harness.table import Table, percent

TITLE = "Figure 1: from q and k to y"
PAPER: dict[str, Any] = {
    "claims": (
        "Scores are −(q − k)² for every channel, softmax over keys makes them weights, and y is the"
        " weighted mean of v.",
        "The exponential brings “spikiness”, which contributes much to attention’s effectiveness;"
        " linear attention lacks it.",
    )
}

L, D = 32, 64
SMOOTH = 1.5  # tokens; neighbours are alike, as in a real sequence, and the maps can be read
FACTORS = (0.5, 1.0, 2.0)  # multiples of sigma at which entropies are measured
SIGMA, SEED = 1.0, 0  # standard deviation of q and k; seed of the sequence
LOOKS = {name.upper(): look for name, look in chart.LOOKS.items()} | {
    "q": Look(GREEN),
    "k": Look(PURPLE, DASHED),
    "v": Look(GREY),
    "EA-0": Look(GREY),
}


@dataclass(frozen=True)
class Plan:
    """Nothing to choose."""


def plan(quick: bool) -> Plan:
    """Return the only plan, which takes a second."""
    return Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Compute one channel step by step, then the entropy of every mechanism."""
    for row in compute():
        key = {name: row.get(name) for name in ("what", "who", "sigma", "seed")}
        yield from log.measure(key, lambda row=row: row)  # type: ignore[misc]


def tensors(sigma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v [L, D] of a smooth random signal; q and k have deviation sigma, v has 1."""
    rng = torch.Generator().manual_seed(SEED)
    token = torch.arange(L, dtype=torch.float64)
    near = torch.exp(-((token[:, None] - token) ** 2) / (2 * SMOOTH**2))
    x = near / near.norm(dim=1, keepdim=True) @ _normal(rng, L, D)
    q, k, v = (x @ _normal(rng, D, D) for _ in range(3))
    return sigma * q / q.std(), sigma * k / k.std(), v / v.std()


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def compute() -> Iterator[Row]:
    """Yield inputs, scores, weights and outputs of one channel, then all entropies."""
    config = {"seed": SEED, "L": L, "D": D, "smooth": SMOOTH, "dtype": "float64"}
    q, k, v = tensors(SIGMA)
    exact = ea(q, k)
    exact_y = y_of(exact, v)
    c = typical_channel(y_of(FORMS["EA-6"](q, k), v), exact_y)
    here = config | {"sigma": SIGMA, "channel": c}
    channel = zip("qkv", (q, k, v), strict=True)
    yield here | {"what": "inputs"} | {n: significant(x[:, c].tolist(), 6) for n, x in channel}
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
        for name, mechanism in MECHANISMS.items():
            found = entropy(mechanism(factor * q, factor * k)).flatten()
            p20, p80 = found.quantile(torch.tensor([0.2, 0.8], dtype=found.dtype)).tolist()
            row = config | {"what": "entropy", "who": name, "sigma": factor * SIGMA}
            yield row | {"entropy": float(found.mean()), "p20": p20, "p80": p80}


def _matrix(x: Tensor) -> list[list[float]]:
    return [significant(row, 4) for row in x.tolist()]


# ---- weights of query i on key j, [i, j, channels]; those of a head are one channel --------------


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Compute o_ij = -(q_i - k_j)^2 (Eq. 1)."""
    return -((q[:, None] - k[None]) ** 2)


def ea(q: Tensor, k: Tensor) -> Tensor:
    """Compute softmax_j(o_ij), one map per channel (Eq. 2)."""
    return scores(q, k).softmax(dim=1)


def ea_series(order: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return `ea` with e^(2qk) replaced by its Taylor polynomial (Eq. 5)."""

    def weights(q: Tensor, k: Tensor) -> Tensor:
        terms = reference.taylor(order, q) * reference.powers(q, order)  # [i, D, N]
        polynomial = torch.einsum("icn,jcn->ijc", terms, reference.powers(k, order))
        return _normalised(torch.exp(-(k**2)) * polynomial)

    return weights


def sa(q: Tensor, k: Tensor) -> Tensor:
    """Compute softmax_j(q_i k_j^T / sqrt(D)), one head of all channels (Eq. 17, scaled)."""
    return (q @ k.T / math.sqrt(q.shape[1])).softmax(dim=1)[:, :, None]


def la(q: Tensor, k: Tensor) -> Tensor:
    """Normalise phi(q_i) phi(k_j)^T with phi(x) = elu(x) + 1, one head (Eq. 18)."""
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return _normalised((phi_q @ phi_k.T)[:, :, None])


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=1, keepdim=True)


FORMS = {"EA": ea, "EA-6": ea_series(6), "EA-2": ea_series(2)}
MECHANISMS = {"SA": sa, "LA": la, **FORMS, "EA-0": ea_series(0)}


def entropy(weights: Tensor) -> Tensor:
    """Compute -sum_j w_ij log w_ij / log L: 1 for uniform weights, 0 for a single key."""
    return torch.special.entr(weights).sum(dim=1) / math.log(weights.shape[1])


def y_of(weights: Tensor, v: Tensor) -> Tensor:
    """Compute y_i = sum_j w_ij v_j per channel: [i, j, D], [j, D] -> [i, D]."""
    return (weights * v).sum(dim=1)


def typical_channel(y: Tensor, exact: Tensor) -> int:
    """Return the channel with the median error, neither the best to show nor the worst."""
    error = (y - exact).norm(dim=0) / exact.norm(dim=0)
    return int(error.argsort()[len(error) // 2])


def misplaced(weights: Tensor, exact: Tensor) -> Tensor:
    """Return the share of weight on other keys than in `exact`, mean over queries: [D]."""
    return (weights - exact).abs().sum(dim=1).mean(dim=0) / 2


def entropies(rows: Sequence[Row]) -> dict[tuple[float, str], float]:
    """Return the mean entropy by (sigma, mechanism)."""
    return {(row["sigma"], row["who"]): row["entropy"] for row in rows_of(rows, "entropy")}


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the error of the series, and the entropy of the weights by mechanism."""
    found = [find_row(rows, what="weights", who=who) for who in ("EA-6", "EA-2")]
    body = [[r["who"], percent(r["misplaced_all"]), percent(r["error_all"])] for r in found]
    title = f"Difference from EA over all channels, σ = {SIGMA:g}"
    yield Table(title, ["form", "weight misplaced", "relative error of y"], body)
    entropy_of = entropies(rows)
    sigmas = list(dict.fromkeys(sigma for sigma, _ in entropy_of))
    body = [[who, *(f"{entropy_of[sigma, who]:.3f}" for sigma in sigmas)] for who in MECHANISMS]
    head = ["mechanism", *(f"σ = {sigma:g}" for sigma in sigmas)]
    notes = ["1 is uniform, lower is spikier.", *(_ranking(entropy_of, sigma) for sigma in sigmas)]
    yield Table("Entropy of the weights", head, body, notes)


def _ranking(found: dict[tuple[float, str], float], sigma: float) -> str:
    """Compare EA and its series with LA, and with weights that ignore q."""
    spikier = [who for who in FORMS if found[sigma, who] < found[sigma, "LA"]]
    flat = [w for w in FORMS if w != "EA" and found[sigma, w] >= found[sigma, "EA-0"]]
    line = f"σ = {sigma:g}: spikier than LA: {', '.join(spikier) or 'none'}"
    return line + (f"; no spikier than without q: {', '.join(flat)}." if flat else ".")


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield where SA or LA is spikier than EA, and how much weight a series misplaces."""
    found = entropies(rows)
    for (sigma, who), value in found.items():
        if who in ("SA", "LA") and value < found[sigma, "EA"]:
            both = f"entropy {value:.2f}, against {found[sigma, 'EA']:.2f}"
            yield f"At σ = {sigma:g} {who} is spikier than EA: {both}."
    for row in rows_of(rows, "weights"):
        if row["misplaced_all"] > 0.1:
            where, share = f"At σ = {row['sigma']:g}", percent(row["misplaced_all"])
            yield f"{where} {row['who']} puts {share} of the weight on other keys than EA does."


def draw(rows: Sequence[Row]) -> Chart:
    """Draw inputs and scores, the weights of each form, outputs, and entropies."""
    given = find_row(rows, what="inputs")
    weights = {who: find_row(rows, what="weights", who=who) for who in FORMS}
    title = f"(a) q and k of channel {given['channel']}, σ = {SIGMA:g}"
    style: dict[str, Any] = {"x": "token", "looks": LOOKS, "markers": False}
    panels = [lines(title, _curves({n: given[n] for n in "qk"}), y="value", columns=4, **style)]
    o = find_row(rows, what="scores")["o"]
    panels.append(heat("(b) Scores −(q − k)²", o, scheme="cividis"))
    top = max(max(map(max, row["weights"])) for row in weights.values())
    for letter, (who, row) in zip("cde", weights.items(), strict=True):
        title = f"({letter}) {who} misplaces {percent(row['misplaced'])}"
        title = f"({letter}) Weights of EA" if who == "EA" else title
        panels.append(heat(title, row["weights"], scheme="viridis", domain=[0, top]))
    title = "(f) Output y, the weighted mean of v"
    curves = {"v": given["v"]} | {who: row["y"] for who, row in weights.items()}
    panels.append(lines(title, _curves(curves), y="v and y", **style))
    points = [
        {"series": row["who"], "x": f"σ = {row['sigma']:g}", "y": row["entropy"]}
        | {"low": row["p20"], "high": row["p80"]}
        for row in rows_of(rows, "entropy")
    ]
    title = "(g) Entropy of the weights, p20 to p80"
    return Chart([*panels, dots(title, points, y="entropy, 1 = uniform", looks=LOOKS)])


def _curves(values: dict[str, list[float]]) -> list[Row]:
    return [{"series": n, "x": x, "y": y} for n, ys in values.items() for x, y in enumerate(ys)]


def heat(title: str, values: list[list[float]], **scale: Any) -> Panel:
    """Draw a map of [query, key] with its own colour scale."""
    cells = [{"i": i, "j": j, "w": w} for i, row in enumerate(values) for j, w in enumerate(row)]
    ticks = list(range(0, len(values), 8))
    body = alt.Chart(alt.Data(values=cells)).mark_rect(aria=False)
    body = body.encode(
        x=alt.X("j:O", title="key j").axis(values=ticks, labelAngle=0),
        y=alt.Y("i:O", title="query i").axis(values=ticks),
        color=alt.Color("w:Q").scale(**scale).legend(title=None, orient="right"),
        tooltip=[alt.Tooltip("i:O", title="query"), alt.Tooltip("j:O", title="key"), "w:Q"],
    )
    return Panel(title, alt.layer(body).resolve_scale(color="independent"), {}, 2, legend=False)
