"""Mixers: EA next to SA and GRU on the eight short ETT tasks, everything else equal.

The rows are those of GIFT-Eval with other mixers and seeds.
"""

from collections.abc import Iterator
from statistics import geometric_mean

from paper.forecasting.gift import ETT, key_of, measure
from paper.forecasting.plan import MIXER, OURS, Plan
from paper.harness.runlog import Key, group, rows_of
from paper.harness.scores import Mean, seeds_note
from paper.harness.table import Table
from paper.harness.target import Rows

__all__ = ["keys", "losses", "measure", "tables"]
TASKS = tuple(f"{data}/{freq}/short" for data in ETT for freq in ("15T", "H", "D", "W"))

NOTE = (
    "Where the mixers have nearly the same score, the direct path of the forecaster, which has no"
    " mixer, was about as good on the validation windows, so `fit` kept little else."
)


def keys(plan: Plan, rows: Rows = ()) -> Iterator[Key]:
    """Yield the keys of every task with each mixer and seed."""
    for seed in range(plan.seeds):
        for mixer in dict.fromkeys((MIXER, *plan.mixers)):
            for task in TASKS:
                if not plan.tasks or task in plan.tasks:
                    yield key_of(plan, task, mixer, seed)


def relative(rows: Rows, score: str) -> dict[str, dict[str, list[float]]]:
    """Return a score of every mixer, task and seed relative to seasonal naive.

    Only tasks that all mixers have are compared, and only if there are several mixers.
    """
    own = [r for r in rows_of(rows, "gift") if r["task"] in TASKS and r["model"] == OURS]
    found = {
        mixer: {
            task: [row[score] / row[f"naive_{score}"] for row in runs]
            for task, runs in group(of, "task").items()
        }
        for mixer, of in group(own, "mixer").items()
    }
    shared = [task for task in TASKS if all(task in of for of in found.values())]
    if len(found) < 2 or not shared:
        return {}
    return {mixer: {task: of[task] for task in shared} for mixer, of in found.items()}


def _mean(tasks: dict[str, list[float]]) -> float:
    """Return the geometric mean over tasks and seeds."""
    return geometric_mean(value for values in tasks.values() for value in values)


def tables(rows: Rows) -> Iterator[Table]:
    """Yield MASE and CRPS of every mixer and task."""
    for score in ("mase", "crps"):
        found = relative(rows, score)
        if not found:
            continue
        tasks = list(next(iter(found.values())))
        cells = {m: [Mean.of(of[task]) for task in tasks] for m, of in found.items()}
        body = [[m, *(mean.text for mean in cells[m]), f"{_mean(found[m]):.3f}"] for m in found]
        title = f"Mixers: {score.upper()} relative to seasonal naive"
        notes = [seeds_note(mean for means in cells.values() for mean in means), NOTE]
        head = ["mixer", *(task.removesuffix("/short") for task in tasks), "geometric mean"]
        yield Table(title, head, body, notes)


def losses(rows: Rows) -> Iterator[str]:
    """Yield mixers with a lower geometric mean than the default one."""
    for score in ("mase", "crps"):
        means = {mixer: _mean(of) for mixer, of in relative(rows, score).items()}
        for mixer, value in means.items():
            if value < means.get(MIXER, 0.0):
                numbers = f"{value:.3f} against {means[MIXER]:.3f}"
                yield f"Short ETT tasks, {score.upper()} / naive: `{mixer}` {numbers}."
