"""Beyond the paper: faithful to exact EA in linear time.

The paper's Taylor series equals EA only near 0. A quadrature, a sum of Gaussian features, equals EA
on its whole grid at the same complexity. With more than 33 nodes only those near q and k are
evaluated: a wider grid takes a larger state but no more time, and its weights are accurate while a
key is within 5 of q. There are three questions. How does the error depend on
the number of terms and on the spread of q and k, and what do the terms cost? Does a model trained
with exact EA give the same answers with a quadrature? Does training with a faithful expansion give
better models? The models are those of Table 3 and Table 4 on their short datasets, because
exact EA is quadratic.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from eattn.data import load_classification, load_forecasting
from eattn.nn import check_mixer, set_expansion
from eattn.ops import Expansion, Quadrature, State, Taylor, ea, ea_series
from paper.harness.chart import (
    BLUE,
    DASHED,
    DOTTED,
    PURPLE,
    SOLID,
    VERMILLION,
    Chart,
    Look,
    lines,
)
from paper.harness.measure import Candidate, Shape, inputs, interleave, value_and_gradients
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog, find_row, group, rows_of
from paper.harness.scores import Mean, means, seeds_note
from paper.harness.settings import key_of
from paper.harness.table import Table, percent
from paper.harness.target import Rows, Target
from paper.tables import table3, table4

TITLE = "Faithful in linear time"
EXACT = "ea"
FAITHFUL = Quadrature(25)
WIDE = Quadrature(129)  # covers q and k up to a spread of 8
NEAR = 5.0  # distance of q to the nearest key up to which wide grids are accurate
IN_RANGE = ("ea-6+norm", "ea-6+bandwidth", "ea-6+center")  # keep q and k near 0
SWAPPED = (FAITHFUL, Taylor(6))  # expansions that run the weights of exact EA
DEFAULTS = {"shape": (4, 512, 64)}  # rows of errors do not store this value
SHADES = {1.0: BLUE, 2.0: VERMILLION, 4.0: PURPLE}  # spreads in the picture
KINDS: dict[str, tuple[list[int], str]] = {
    "Taylor": (SOLID, "circle"),
    "quadrature": (DASHED, "square"),
    "wide grid": (DOTTED, "diamond"),
    "coarse grid": (DOTTED, "triangle-up"),
}


@dataclass(frozen=True)
class Plan:
    """Expansions to compare with exact EA, and models to train."""

    spreads: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0)
    orders: tuple[int, ...] = tuple(range(2, 17, 2))
    nodes: tuple[int, ...] = tuple(range(7, 34, 2))
    wide: tuple[Quadrature, ...] = (Quadrature(33, 16), *map(Quadrature, (65, 129, 257, 513)))
    shape: Shape = DEFAULTS["shape"]  # for errors
    timed: Shape = (1, 16384, 768)
    rounds: int = 10
    mixers: tuple[str, ...] = ("ea-6", f"ea-{FAITHFUL}", EXACT, *IN_RANGE)
    sets: tuple[str, ...] = ("JapaneseVowels", "UWaveGestureLibrary")
    series: tuple[str, ...] = ("ETTh2",)
    seeds: int = 5
    epochs: float = 1.0  # share of the epochs of the tables
    jobs: int | None = None  # runs side by side; one per core by default

    def expansions(self) -> list[Expansion]:
        return [*map(Taylor, self.orders), *map(Quadrature, self.nodes), *self.wide]

    def groups(self) -> Iterator[tuple[Key, Callable[[], Row | Iterable[Row]]]]:
        """Yield the key of each error, and how to measure it."""
        changed = key_of(self, DEFAULTS)
        for spread, expansion in product(self.spreads, self.expansions()):
            key = {"what": "error", "expansion": f"ea-{expansion}", "spread": spread}
            work = wide_error_row if expansion in self.wide else error_row
            yield key | changed, partial(work, self.shape, spread, expansion)
        for expansion in map(Taylor, self.orders):
            key = {"what": "center", "expansion": f"ea-{expansion}"}
            yield key | changed, partial(center_rows, self.shape, expansion)

    def times(self) -> dict[Expansion, Key]:
        """Return the key of the time of each expansion."""
        key = {"what": "time", "shape": self.timed}
        return {each: key | {"expansion": f"ea-{each}"} for each in self.expansions()}

    def runs(self) -> Iterator[Key]:
        """Yield the settings of every training run, which are the key of its row."""
        share = {"share": None if self.epochs == 1 else self.epochs}
        for seed, mixer in product(range(self.seeds), self.mixers):
            common = {"mixer": mixer, "seed": seed}
            for data in self.sets:
                epochs = max(1, round(table3.SETTINGS[data].epochs * self.epochs))
                key = {"what": "run", "data": data, "protocol": "clean", "epochs": epochs}
                yield key | common
            for data in self.series:
                epochs = max(1, round(table4.SETTINGS[data].epochs * self.epochs))
                key = {"what": "forecast", "data": data, "split": "chronological", "horizon": 6}
                yield key | common | {"epochs": epochs} | share


def plan(quick: bool) -> Plan:
    """Return the full plan, or fewer terms, one small dataset, and a quarter of the epochs."""
    if not quick:
        return Plan()
    few: dict[str, Any] = {"orders": (2, 6, 12), "nodes": (9, 17, 25), "wide": (Quadrature(65),)}
    few["timed"] = (1, 4096, 768)
    return Plan(**few, rounds=3, sets=("JapaneseVowels",), series=(), seeds=1, epochs=0.25)


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Measure errors and times, then train every model, several side by side."""
    for mixer in plan.mixers:
        check_mixer(mixer)
    for data in plan.sets:
        load_classification(data, "TRAIN")  # fails, or downloads, before the work
    for data in plan.series:
        load_forecasting(data)
    yield from log.measure_all(plan.groups())
    times = plan.times()
    log.expect(times.values())
    yield from log.measure_together(times.values(), partial(time_rows, plan))
    yield from run_all(log, plan.runs(), measure_run, jobs=plan.jobs)


@lru_cache(maxsize=1)
def _exact(shape: Shape, spread: float, mean: float, causal: bool) -> list[Tensor]:
    """Return q and k with this mean and spread, v, and exact EA of them in float64."""
    q, k, v = inputs(shape)
    q, k = q * spread + mean, k * spread + mean
    return [q, k, v, ea(q.double(), k.double(), v.double(), causal=causal)]


def error_row(shape: Shape, spread: float, expansion: Expansion) -> Row:
    """Return the error of the causal operator in float32, relative to exact EA in float64."""
    q, k, v, exact = _exact(shape, spread, 0.0, True)
    y = ea_series(q, k, v, expansion=expansion, causal=True)
    return _fields(expansion) | {"error": _distance(y, exact)}


@lru_cache(maxsize=1)
def _near(shape: Shape, spread: float) -> Tensor:
    """Return whether each token and channel of the causal operator has a key within NEAR of q."""
    q, k, *_ = _exact(shape, spread, 0.0, True)
    future = torch.ones(shape[1], shape[1], dtype=torch.bool).triu(1).unsqueeze(-1)
    gaps = [
        (a.unsqueeze(1) - b).abs().masked_fill(future, torch.inf) for a, b in zip(q, k, strict=True)
    ]
    return torch.stack([gap.amin(1) for gap in gaps]) <= NEAR


def wide_error_row(shape: Shape, spread: float, expansion: Expansion) -> Row:
    """Return the error as in `error_row`, also with and without a key within NEAR of q."""
    q, k, v, exact = _exact(shape, spread, 0.0, True)
    y, near = ea_series(q, k, v, expansion=expansion, causal=True), _near(shape, spread)
    found: Row = {"error": _distance(y, exact), "near_error": _distance(y[near], exact[near])}
    if not near.all():
        found |= {"far_error": _distance(y[~near], exact[~near])}
    return _fields(expansion) | found | {"far_share": float((~near).double().mean())}


def center_rows(shape: Shape, expansion: Expansion) -> Iterator[Row]:
    """Yield the error for q and k around 1, as they are and moved to 0."""
    q, k, v, exact = _exact(shape, 0.5, 1.0, False)
    for centred in (False, True):
        center = k.mean(1, keepdim=True) if centred else 0.0
        y = ea_series(q - center, k - center, v, expansion=expansion)
        yield _fields(expansion) | {"centred": centred, "error": _distance(y, exact)}


def time_rows(plan: Plan, keys: Sequence[Key]) -> Iterator[Row]:
    """Time forward, and forward with backward, of the expansions of some keys in turn."""
    expansions = [each for each, key in plan.times().items() if key in keys]
    q, k, v, gy = inputs(plan.timed, 4)

    def forward(expansion: Expansion) -> Callable[[], object]:
        return torch.no_grad()(partial(ea_series, q, k, v, expansion=expansion, causal=True))

    def training(expansion: Expansion) -> Callable[[], object]:
        op = partial(ea_series, expansion=expansion, causal=True)
        return partial(value_and_gradients, op, q, k, v, gy)

    times = {}
    for work in (forward, training):
        candidates = {str(each): Candidate(work(each)) for each in expansions}
        times[work.__name__] = interleave(candidates, rounds=plan.rounds)
    for expansion in expansions:
        found = {name: of[str(expansion)].p50 for name, of in times.items()}
        state = State.zeros(1, plan.timed[2], expansion=expansion)
        yield _fields(expansion) | found | {"state_bytes": state.nbytes}


def _distance(y: Tensor, exact: Tensor) -> float:
    return float((y.double() - exact).norm() / exact.norm())


def _fields(expansion: Expansion) -> Row:
    return {"expansion": f"ea-{expansion}", "terms": expansion.terms, "radius": expansion.radius}


def measure_run(key: Key) -> Row:
    """Train one model; with exact EA, also run its weights with other expansions."""
    work = _classify if key["what"] == "run" else _forecast
    row, model, evaluate = work(key)
    if key["mixer"] != EXACT:
        return row
    swapped = {}
    for expansion in SWAPPED:
        set_expansion(model, expansion)
        swapped[f"ea-{expansion}"] = evaluate()
    return row | {"swapped": swapped}


def _classify(key: Key) -> tuple[Row, nn.Module, Callable[[], Row]]:
    model, test, row = table3.fit(key)
    before = table3.labels(model, test)

    def evaluate() -> Row:
        found = table3.labels(model, test)
        pairs = {"accuracy": test[-1], "agreement": before}
        return {name: float((found == other).double().mean()) for name, other in pairs.items()}

    return row, model, evaluate


def _forecast(key: Key) -> tuple[Row, nn.Module, Callable[[], Row]]:
    model, data, row = table4.fit({**key, "model": key["mixer"]})
    before = table4.errors_of(model, data, "test")

    def evaluate() -> Row:
        errors = table4.errors_of(model, data, "test")
        moved = float((errors - before).abs().mean()) * data.unit
        return table4.scores(errors, data) | {"moved": moved}

    return row, model, evaluate


def agreements(rows: Rows, expansion: str) -> dict[str, float]:
    """Return the share of exact EA's answers on TEST that stay the same, by dataset."""
    exact = [row for row in rows_of(rows, "run") if "swapped" in row]
    return {
        data: fmean(row["swapped"][expansion]["agreement"] for row in own)
        for data, own in group(exact, "data").items()
    }


def _least_agreement(rows: Rows) -> float:
    found = agreements(rows, f"ea-{FAITHFUL}")
    if not found:
        raise LookupError("no model was trained with exact EA")
    return min(found.values())


def _error(rows: Rows, spread: float) -> float:
    row = find_row(rows, what="error", expansion=f"ea-{FAITHFUL}", spread=spread)
    return float(row["error"])


def _largest_near_error(rows: Rows) -> float:
    at = {"what": "error", "expansion": f"ea-{WIDE}"}
    spreads = [spread for spread in Plan.spreads if spread <= 4]
    return max(float(find_row(rows, **at, spread=spread)["near_error"]) for spread in spreads)


_errors = (
    Target(f"error of ea-{FAITHFUL} at a spread of {s:g}", partial(_error, spread=s), at_most=2e-4)
    for s in (1.0, 1.5)
)
_name = f"exact EA's answers on ea-{FAITHFUL}: least agreement of a dataset"
_wide = f"largest error of ea-{WIDE} at spreads of 0.25 to 4, a key within {NEAR:g} of q"
TARGETS = (
    *_errors,
    Target(_wide, _largest_near_error, at_most=2e-4),
    Target(_name, _least_agreement, at_least=0.999),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield errors and costs, the gain by centring, and the results of training."""
    errors, centers, forecasts, runs = (
        rows_of(rows, what) for what in ("error", "center", "forecast", "run")
    )
    if errors:
        yield _costs(errors, rows_of(rows, "time"))
    if wide := [row for row in errors if "near_error" in row]:
        yield _distances(wide)
    if centers:
        body = [
            [name, *(f"{row['error']:.1e}" for row in pair)]
            for name, pair in group(centers, "expansion").items()
        ]
        title = "Error for q and k around 1 with a spread of 0.5"
        yield Table(title, ["expansion", "as they are", "centred"], body)
    if forecasts:
        yield _forecasts(forecasts)
    if runs:
        yield from _accuracies(runs)


def _costs(errors: Sequence[Row], times: Sequence[Row]) -> Table:
    spreads = group(errors, "spread")
    head = ["expansion", *(f"spread {spread:g}" for spread in spreads)]
    head += ["forward, ms", "forward+backward, ms", "state, KiB"]
    cost = {row["expansion"]: row for row in times}
    body = []
    for name, found in group(errors, "expansion").items():
        cells = [name, *_errors_by_spread(found, "error", spreads)]
        row = cost.get(name)
        if row is not None:
            cells += [f"{row[field] * 1e3:.0f}" for field in ("forward", "training")]
            cells.append(f"{row['state_bytes'] / 1024:.0f}")
        body.append(cells + [""] * (len(head) - len(cells)))
    return Table("Error relative to exact EA, by the spread of q and k", head, body)


def _distances(errors: Sequence[Row]) -> Table:
    """Tabulate the errors of wide grids with and without a key near q."""
    spreads, body = group(errors, "spread"), []
    for words, field in (("", "near_error"), (", others", "far_error")):
        for name, found in group(errors, "expansion").items():
            body.append([name + words, *_errors_by_spread(found, field, spreads)])
    body.append(["share of others", *(percent(own[0]["far_share"]) for own in spreads.values())])
    head = ["expansion", *(f"spread {spread:g}" for spread in spreads)]
    title = f"Error of wide grids over tokens and channels with a key within {NEAR:g} of q"
    return Table(title, head, body, ["The others are those without a key so near."])


def _errors_by_spread(rows: Sequence[Row], field: str, spreads: Iterable[float]) -> list[str]:
    found = {row["spread"]: f"{row[field]:.1e}" for row in rows if field in row}
    return [found.get(spread, "") for spread in spreads]


def _forecasts(runs: Sequence[Row]) -> Table:
    body = _means(runs, "mae")
    for name in dict.fromkeys(name for row in runs for name in row.get("swapped", ())):
        exact = [row | row["swapped"][name] for row in runs if "swapped" in row]
        body += [[f"ea's weights on {name}", *cells] for _, *cells in _means(exact, "mae")]
    title = "MAE, horizon 6, windows in the order of time"
    return Table(title, ["trained with", *group(runs, "data")], body)


def _accuracies(runs: Sequence[Row]) -> Iterator[Table]:
    runs = sorted(runs, key=lambda row: list(table3.SHORT).index(row["data"]))
    short = [table3.SHORT[data] for data in group(runs, "data")]
    body = _means(runs, "accuracy")
    for cells, own in zip(body, group(runs, "mixer").values(), strict=True):
        cells.append(f"{fmean(row['seconds'] for row in own):.0f}")
    title = "Accuracy on TEST, epoch picked on a fifth of TRAIN"
    note = seeds_note(means(runs, "accuracy", "data", "mixer").values())
    yield Table(title, ["trained with", *short, "seconds per run"], body, [note])
    body = []
    exact = [row for row in runs if "swapped" in row]
    for name in dict.fromkeys(name for row in exact for name in row["swapped"]):
        same, cells = agreements(runs, name), [name]
        for data in group(runs, "data"):
            found = [r["swapped"][name]["accuracy"] for r in exact if r["data"] == data]
            cells.append(f"{fmean(found):.3f}, {same[data]:.2%}" if found else "")
        body.append(cells)
    if body:
        head = ["used with", *(f"{name}: accuracy, same answers" for name in short)]
        yield Table("Weights of exact EA with other expansions", head, body)


def _means(runs: Sequence[Row], score: str) -> list[list[str]]:
    """Return a line per mixer: mean and deviation of a score over the seeds, by dataset."""
    found, sets = means(runs, score, "mixer", "data"), group(runs, "data")
    return [
        [mixer, *(_cell(found[mixer, data]) if (mixer, data) in found else "" for data in sets)]
        for mixer in group(runs, "mixer")
    ]


def _cell(mean: Mean) -> str:
    return f"{mean.value:.3f} ± {mean.spread:.3f}"


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw the error against the number of terms, and against time."""
    errors = [row for row in rows_of(rows, "error") if row["spread"] in SHADES]
    time = {row["expansion"]: row["training"] * 1e3 for row in rows_of(rows, "time")}
    looks, points, timed = {}, [], []
    for row in errors:
        kind = _kind(row)
        name = f"{kind}, σ = {row['spread']:g}"
        looks[name] = Look(SHADES[row["spread"]], *KINDS[kind])
        point = {"series": name, "y": row["error"]}
        if "near_error" not in row:
            points.append(point | {"x": row["terms"]})
        if row["expansion"] in time:
            timed.append(point | {"x": time[row["expansion"]]})
    y = "error relative to exact EA"
    panels = [
        lines(title, found, x=x, y=y, log="y", looks=looks)
        for title, x, found in (
            ("(a) Error by number of terms", "terms", points),
            ("(b) Error by time", "forward and backward, ms", timed),
        )
        if found
    ]
    return Chart(panels) if panels else None


def _kind(row: Row) -> str:
    """Return the series of a row in the picture; a coarse grid is a wide one with fewer nodes."""
    if "near_error" not in row:
        return "quadrature" if row["radius"] > 0 else "Taylor"
    return "wide grid" if row["radius"] <= 0.5 * (row["terms"] // 2) else "coarse grid"


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the spreads at which the paper's series, or a wide grid, is far from exact EA."""
    for row in rows_of(rows, "error"):
        if row["expansion"] == "ea-6" and row["error"] > 0.1:
            off = percent(row["error"])
            yield f"At a spread of {row['spread']:g} of q and k, EA-6 is {off} off exact EA."
        if row["expansion"] == f"ea-{WIDE}" and row.get("far_error", 0.0) > 1e-3:
            share, off = percent(row["far_share"]), percent(row["far_error"])
            yield (
                f"At a spread of {row['spread']:g}, {share} of the outputs have no key within"
                f" {NEAR:g} of q; there `ea-{WIDE}` is {off} off exact EA."
            )
