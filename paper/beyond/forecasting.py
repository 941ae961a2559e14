"""Beyond the paper: forecasting.

Is `EAForecaster` a forecaster to keep? It is trained on each of 25 tasks of GIFT-Eval, next to the
published scores of other models; on m1, m3, tourism and 54 well-known series, next to statistical
models and LightGBM; and on electricity loads with and without covariates. As a detector of
anomalies it reads the Numenta Anomaly Benchmark (NAB). On the short ETT tasks its mixer is replaced
by softmax attention and a GRU. On ETT streams the coverage of its intervals is counted.

The split `dev` of the plan leaves out the values that are forecast here, for development. The
settings for NAB are chosen on four of its seven folders.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import ModuleType

from eattn.nn import check_mixer
from paper.forecasting import anomalies, classics, covariates, coverage, gift, mixers
from paper.forecasting.files import data_file
from paper.forecasting.plan import OURS, STATISTICAL, TREES, Plan
from paper.harness.chart import Chart, Panel
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Forecasting"
PARTS: dict[str, ModuleType] = {
    "gift": gift,
    "mixers": mixers,
    "classics": classics,
    "covariates": covariates,
    "anomalies": anomalies,
    "coverage": coverage,
}
MEASURE = {part: module.measure for part, module in PARTS.items()}  # by `what` of a key
PUBLISHED = {"gift": gift.published, "anomalies": anomalies.published}
FOLDERS = {"anomalies": ("anomaly", "NAB")}  # of the data folder; else forecasting
PACKAGES = dict.fromkeys(STATISTICAL, "statsforecast") | {TREES: "lightgbm"}
VARIANTS = ("split", "first", "options")  # fields of rows that are not compared with each other


def plan(quick: bool) -> Plan:
    """Return the full plan, or small tasks and 20 series of each dataset."""
    if not quick:
        return Plan()
    few = Plan(tasks=("ett1/W/short", "ett2/W/short", "hospital/M/short", "us_births/M/short"))
    few = replace(few, models=(OURS, TREES, "SeasonalNaive", "AutoTheta", "AutoETS"))
    few = replace(few, mixers=("sa",), seeds=1, settings=("default",), streams=("ett1/H",))
    return replace(few, rows=200, series=20)


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Read published scores, then measure all keys of the plan, several side by side.

    The key of all files of NAB follows once its settings are chosen.
    """
    check(plan)
    for part in plan.parts:
        for key, found in PUBLISHED.get(part, lambda: iter(()))():
            yield from log.measure(key, partial(dict, found))
    while missing := [key for key in keys(plan, log.rows) if not log.has(key)]:
        for _ in run_all(log, missing, measure_run, jobs=plan.jobs):
            pass
    for key in keys(plan, log.rows):
        yield from log.find(key)


def check(plan: Plan) -> None:
    """Raise before the work if a mixer is unknown, or data or a package is missing."""
    for mixer in plan.mixers:
        check_mixer(mixer)
    for part in plan.parts:
        data_file(*FOLDERS.get(part, ("forecasting",)))
    for model in plan.models if {"classics", "covariates"} & set(plan.parts) else ():
        package = PACKAGES.get(model)
        if package is not None and find_spec(package) is None:
            raise ModuleNotFoundError(
                f'{model} needs {package}: pip install "eattn[study]", or leave it out with'
                " --set models=..."
            )


def keys(plan: Plan, rows: Rows) -> list[Key]:
    """Return the keys of all parts; parts share some."""
    found = [key for part in plan.parts for key in PARTS[part].keys(plan, rows)]
    return list({str(key): key for key in found}.values())


def measure_run(key: Key) -> Row:
    """Measure one key."""
    row: Row = MEASURE[key["what"]](key)
    return row


TARGETS: Sequence[Target] = tuple(
    replace(
        target, value=partial(lambda rows, value: value(variants(rows)[""]), value=target.value)
    )
    for module in PARTS.values()
    for target in getattr(module, "TARGETS", ())
)


def variants(rows: Rows) -> dict[str, list[Row]]:
    """Split rows by VARIANTS, the default under an empty name; raise KeyError if it is missing.

    Rows of other models have no options and belong to all variants of their split; published
    scores belong to those that forecast all test values.
    """
    found: dict[str, list[Row]] = {}
    own = [row for row in rows if row.get("model") == OURS] or [r for r in rows if "model" in r]
    for fields in {str(f): f for f in ({n: row.get(n) for n in VARIANTS} for row in own)}.values():
        name = ", ".join(f"{n} {_text(v)}" for n, v in fields.items() if v is not None)
        found[name] = [
            row
            for row in rows
            if all(row.get(n) == fields[n] for n in VARIANTS[:2])
            and (row.get("options") == fields["options"] or row.get("model") != OURS)
        ]
    return dict(sorted(found.items()))


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the tables of all parts, for each variant."""
    for name, own in variants(rows).items():
        for module in PARTS.values():
            for table in module.tables(own):
                yield replace(table, title=table.title + f" ({name})" * bool(name))


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw the panels of all parts, for the first variant."""
    own = next(iter(variants(rows).values()), [])
    drawn = [panel for module in PARTS.values() for panel in _panels(module, own)]
    drawn.sort(key=lambda panel: -panel.columns)  # wide ones first
    found = [
        replace(panel, title=f"({letter}) {panel.title}")
        for letter, panel in zip("abcdefgh", drawn, strict=False)
    ]
    return Chart(found) if found else None


def _panels(module: ModuleType, rows: Rows) -> Iterator[Panel]:
    return module.panels(rows) if hasattr(module, "panels") else iter(())


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield where something else is better, for the first variant."""
    own = next(iter(variants(rows).values()), [])
    for module in PARTS.values():
        yield from module.losses(own)
