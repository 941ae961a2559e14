"""`eattn reproduce faithful`: how near an expansion is to exact EA, its cost, and if it matters.

Not in the paper, which takes the series for EA. Three questions: what error a number of terms
leaves at a spread of q and k, and in what time; whether a model trained with exact EA gives the
same answers on a quadrature, in linear time; and whether a faithful expansion learns better.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from eattn.data import load_classification, load_forecasting
from eattn.nn import check_mixer, set_expansion
from eattn.ops import Expansion, Quadrature, State, Taylor, ea, ea_series
from paper.bench import show
from paper.bench.candidates import inputs, value_and_gradients
from paper.bench.experiment import carry_out, once
from paper.bench.measure import Contender, Row, interleave
from paper.bench.progress import Tick
from paper.bench.runlog import Journal
from paper.bench.target import Promise, Rows, find
from paper.report import faithful as report
from paper.reproduce import table3, table4
from paper.reproduce.pool import run_all

EXACT = "ea"
FAITHFUL = Quadrature(25)
GROUP = 20.0  # seconds that errors, centring or times take, roughly
KEPT_IN_RANGE = ("ea-6+norm", "ea-6+bandwidth", "ea-6+center")


@dataclass(frozen=True)
class Plan:
    """What to measure, and what to train."""

    spreads: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0)
    powers: tuple[int, ...] = tuple(range(2, 17, 2))
    nodes: tuple[int, ...] = tuple(range(7, 34, 2))
    shape: tuple[int, int, int] = (4, 512, 64)  # for errors
    timed: tuple[int, int, int] = (1, 16384, 768)
    rounds: int = 10
    mixers: tuple[str, ...] = ("ea-6", f"ea-{FAITHFUL}", EXACT, *KEPT_IN_RANGE)
    sets: tuple[str, ...] = ("JapaneseVowels", "UWaveGestureLibrary")  # the short ones of Table 3
    series: tuple[str, ...] = ("ETTh2",)  # of Table 4, to horizon 6
    seeds: int = 5
    epochs: float = 1.0  # of those of the tables

    def __post_init__(self) -> None:
        for mixer in self.mixers:
            check_mixer(mixer)

    @classmethod
    def quick(cls) -> "Plan":
        """Fewer terms, one small set, one seed, a quarter of the epochs."""
        few: Any = dict(powers=(2, 6, 12), nodes=(9, 17, 25), timed=(1, 4096, 768), rounds=3)
        return cls(**few, sets=("JapaneseVowels",), series=(), seeds=1, epochs=0.25)

    def expansions(self) -> tuple[Expansion, ...]:
        return (*map(Taylor, self.powers), *map(Quadrature, self.nodes))

    def trainings(self) -> Iterator[tuple[Row, float]]:
        """Every training, and about how many seconds it takes."""
        for seed in range(self.seeds):
            for data in self.sets:
                key: Row = {"what": "run", "data": data, "protocol": "clean", "seed": seed}
                yield from self._each(key, table3.SETTINGS[data].cost)
            for data in self.series:
                key = {"what": "forecast", "data": data, "split": "chronological", "horizon": 6}
                yield from self._each(key | {"seed": seed}, table4.SETTINGS[data].cost)

    def _each(self, key: Row, cost: float) -> Iterator[tuple[Row, float]]:
        for mixer in self.mixers:
            dear = 4 if mixer == EXACT else 1  # it is quadratic
            yield key | {"mixer": mixer}, cost * dear * self.epochs


def run(
    plan: Plan,
    console: Console,
    out: Path,
    *,
    name: str = "faithful",
    data_dir: Path | None = None,
    jobs: int | None = None,
) -> list[Path]:
    """Rows to out/name.jsonl as they come, and a picture of them."""
    out.mkdir(parents=True, exist_ok=True)
    # What fails, or downloads, does so before the work.
    for known in plan.sets:
        load_classification(known, "TRAIN", data_dir=data_dir)
    for known in plan.series:
        load_forecasting(known, data_dir=data_dir)
    settings = {known: asdict(table3.SETTINGS[known]) for known in plan.sets}
    settings |= {known: asdict(table4.SETTINGS[known]) for known in plan.series}
    path, work = out / f"{name}.jsonl", list(plan.trainings())
    groups = {"error": error_rows, "center": center_rows, "time": time_rows}
    train_one = partial(measure_run, epochs=plan.epochs, data_dir=data_dir)

    def measure(journal: Journal, tick: Tick) -> None:
        for what, rows in groups.items():
            once(journal, tick, {"what": what}, f"{what}s", GROUP, partial(rows, plan))
        run_all(journal, work, train_one, tick, jobs=jobs)

    rows = carry_out(
        path,
        "faithful",
        asdict(plan) | {"settings": settings},
        console,
        costs=[*(({"what": what}, GROUP) for what in groups), *work],
        measure=measure,
        promises=PROMISES,
    )
    print_rows(rows, console)
    return [path, *report.redraw(path)]


# ---- errors and times ----------------------------------------------------------------------------


def error_rows(plan: Plan) -> Iterator[Row]:
    """Of the operator in float32, causal, beside exact EA in float64; q, k ~ N(0, spread^2)."""
    for spread in plan.spreads:
        q, k, v = _spread(plan, spread)
        exact = ea(q.double(), k.double(), v.double(), causal=True)
        for expansion in plan.expansions():
            y = ea_series(q, k, v, expansion=expansion, causal=True)
            yield _named(expansion) | {"what": "error", "spread": spread, "error": _off(y, exact)}


def center_rows(plan: Plan) -> Iterator[Row]:
    """Keys and queries around 1: what moving them to 0 gains, which costs nothing."""
    q, k, v = _spread(plan, 0.5)
    q, k = q + 1, k + 1
    exact = ea(q.double(), k.double(), v.double())
    for expansion in map(Taylor, plan.powers):
        for centred in (False, True):
            c = k.mean(1, keepdim=True) if centred else 0.0
            y = ea_series(q - c, k - c, v, expansion=expansion)
            row = {"what": "center", "centred": centred, "error": _off(y, exact)}
            yield _named(expansion) | row


def time_rows(plan: Plan) -> Iterator[Row]:
    """Forward, and forward with backward, of every expansion in turn; and the state's size."""
    q, k, v, gy = inputs(plan.timed, 4)

    def forward(expansion: Expansion) -> Callable[[], object]:
        return torch.no_grad()(partial(ea_series, q, k, v, expansion=expansion, causal=True))

    def both(expansion: Expansion) -> Callable[[], object]:
        op = partial(ea_series, expansion=expansion, causal=True)
        return partial(value_and_gradients, op, q, k, v, gy)

    found: dict[str, dict[str, float]] = {}
    for what, work in (("forward", forward), ("training", both)):
        contenders = {str(e): Contender(work(e)) for e in plan.expansions()}
        for name, times in interleave(contenders, rounds=plan.rounds).items():
            found.setdefault(name, {})[what] = times.p50
    for expansion in plan.expansions():
        state = State.zeros(1, plan.timed[2], expansion=expansion)
        row = {"what": "time", "shape": plan.timed, "state_bytes": state.nbytes}
        yield _named(expansion) | row | found[str(expansion)]


def _spread(plan: Plan, spread: float) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = inputs(plan.shape)
    return q * spread, k * spread, v


def _off(y: Tensor, exact: Tensor) -> float:
    return float((y.double() - exact).norm() / exact.norm())


def _named(expansion: Expansion) -> Row:
    return {"expansion": f"ea-{expansion}", "terms": expansion.terms, "radius": expansion.radius}


# ---- training ------------------------------------------------------------------------------------


def measure_run(key: Row, *, epochs: float, data_dir: Path | None) -> Row:
    """One training; of exact EA, also what its weights give on other expansions."""
    if key["what"] == "forecast":
        return _forecast(key, epochs=epochs, data_dir=data_dir)
    fitted = table3.fit(key, epochs=epochs, data_dir=data_dir)
    if key["mixer"] != EXACT:
        return fitted.row
    exact, swapped = table3.labels(fitted.model, fitted.test), {}
    for expansion in (FAITHFUL, Taylor(6)):
        set_expansion(fitted.model, expansion)
        found = table3.labels(fitted.model, fitted.test)
        swapped[f"ea-{expansion}"] = {
            "accuracy": float((found == fitted.test[-1]).double().mean()),
            "agreement": float((found == exact).double().mean()),
        }
    return fitted.row | {"swapped": swapped}


def _forecast(key: Row, *, epochs: float, data_dir: Path | None) -> Row:
    fitted = table4.fit(key | {"model": key["mixer"]}, share=epochs, data_dir=data_dir)
    if key["mixer"] != EXACT:
        return fitted.row
    exact, swapped = table4.errors_of(fitted.model, fitted.data, "test"), {}
    for expansion in (FAITHFUL, Taylor(6)):
        set_expansion(fitted.model, expansion)
        errors = table4.errors_of(fitted.model, fitted.data, "test")
        moved = float((errors - exact).abs().mean()) * fitted.data.unit
        swapped[f"ea-{expansion}"] = table4.scores(errors, fitted.data) | {"moved": moved}
    return fitted.row | {"swapped": swapped}


# ---- what must hold ------------------------------------------------------------------------------


def _error_at(spread: float) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        row = find(rows, what="error", expansion=f"ea-{FAITHFUL}", spread=spread)
        return float(row["error"])

    return value


def _agreement(rows: Rows) -> float:
    found = report.agreements(rows, f"ea-{FAITHFUL}")
    if not found:
        raise LookupError("no model was trained with exact EA")
    return min(found.values())


PROMISES = (
    Promise(f"error of ea-{FAITHFUL} at a spread of 1", _error_at(1.0), 2e-4, unit=""),
    Promise(f"error of ea-{FAITHFUL} at a spread of 1.5", _error_at(1.5), 2e-4, unit=""),
    Promise(
        f"exact EA's answers on ea-{FAITHFUL}: least agreement of a set",
        _agreement,
        0.999,
        at_most=False,
        unit="",
    ),
)


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """Errors by spread, then what training made of it."""
    for title, head, lines in report.tables(rows):
        out = show.table(title, *head)
        for cells in lines:
            out.add_row(*cells)
        console.print(out)
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows))
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
