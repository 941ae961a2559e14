"""Beyond the paper: language models.

Byte-level language models that differ only in their mixer are trained on the sources of Python's
standard library, with the same blocks, parameters and batches. They are compared by the bits per
byte of validation text after the same number of tokens, and after the same time. EA does not know
which tokens are near, so a short convolution precedes every mixer. EA-6 and SA are also trained
without it, and SA with learned positions. The 300 steps with one learning rate for all show how
fast models learn, not where they end.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from eattn.data.text import load_text
from eattn.lm import LMConfig, train_lm
from paper.harness.chart import DOTTED, GREY, LOOKS, Chart, Look, Panel, lines
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog
from paper.harness.scores import Mean, seeds
from paper.harness.settings import by_variant, defaults, key_of, settings_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Language models"
OURS = "ea-6"
# Size of the text of the rows that do not store it: documents and bytes, training and validation.
TEXT = {"documents": [356, 27], "text_bytes": [7427222, 390873]}
DASHES = {"": None, ", no convolution": DOTTED, ", learned positions": [8, 3, 2, 3]}
CHECKPOINT_SECONDS = 20.0
SMALLEST = 0.0005  # smaller relative differences are not shown by three digits


@dataclass(frozen=True)
class Plan:
    """Every mixer with every seed; the fields after `seeds` are those of `eattn.lm.LMConfig`."""

    mixers: tuple[str, ...] = ("ea-2", "ea-6", "ea", "sa")
    plain: tuple[str, ...] = ("ea-6", "sa")  # also without the convolution
    positioned: tuple[str, ...] = ("sa",)  # also with learned positions
    text: tuple[str, ...] = ()  # files or folders; the standard library by default
    seeds: int = 1
    hidden: int = 256
    layers: int = 4
    length: int = 256
    batch_tokens: int = 4096
    steps: int = 300
    lr: float = 2e-3
    evaluations: int = 8
    judged: int = 2**16
    jobs: int | None = None  # runs side by side; one per core by default

    def runs(self) -> Iterator[Key]:
        """Yield the settings of every training run, which are the key of its row."""
        names = [Path(path).name for path in self.text]  # the same on every machine
        changed = {"text": names or None, **key_of(self, DEFAULTS)}
        kinds = [(self.mixers, 4, False), (self.plain, None, False), (self.positioned, 4, True)]
        for seed, (mixers, short_conv, positions) in product(range(self.seeds), kinds):
            for mixer in (mixer for mixer in mixers if mixer in self.mixers):
                key = {"what": "run", "mixer": mixer, "short_conv": short_conv}
                yield key | {"positions": positions, "seed": seed} | changed


DEFAULTS = defaults(Plan, after="seeds")


def plan(quick: bool) -> Plan:
    """Return the full plan, or small models and few steps: more of both may change the order."""
    if not quick:
        return Plan()
    small: Any = {"hidden": 128, "layers": 2, "length": 128, "batch_tokens": 2048, "judged": 2**14}
    return Plan(**small, steps=120, evaluations=6)


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Train every model of the plan, several side by side; an interrupted run is resumed."""
    load_text([Path(path) for path in plan.text])  # a missing file fails before the work
    keys = list(plan.runs())
    for key in keys:
        model_settings(key)
    folder = None if log.path is None else log.path.parent / f".{log.path.stem}"
    measure = partial(measure_run, text=plan.text, folder=folder)
    return run_all(log, keys, measure, jobs=plan.jobs)


def model_settings(key: Key) -> LMConfig:
    """Return the settings of one run; they raise if they do not fit together."""
    known = {field.name for field in fields(LMConfig)}
    settings = settings_of(key, DEFAULTS)
    values = {n: v for n, v in settings.items() if n in known}
    values |= {"short_conv": key["short_conv"], "validation_tokens": settings["judged"]}
    return LMConfig(**values)


def measure_run(key: Key, *, text: Sequence[str], folder: Path | None) -> Row:
    """Train one model, from its last checkpoint if `folder` has one; every evaluation is a point.

    The checkpoint is removed when the run ends.
    """
    options: dict[str, Any] = {}
    if folder is not None:
        own = folder / ",".join(f"{n}={v}" for n, v in key.items() if v is not None)
        options = {"checkpoint": own, "checkpoint_seconds": CHECKPOINT_SECONDS}
    loaded = load_text([Path(path) for path in text])
    learned = train_lm(loaded, model_settings(key), **options)
    if folder is not None:
        shutil.rmtree(own)
    last, parts = learned.points[-1], (loaded.train, loaded.validation)
    return {
        "bits_per_byte": last.bits_per_byte,
        "tokens": last.tokens,
        "seconds": last.seconds,
        "parameters": learned.parameters,
        "points": [asdict(point) for point in learned.points],
        "threads": 1,
        "documents": [len(part) for part in parts],
        "text_bytes": [sum(len(document.content) for document in part) for part in parts],
        "fingerprint": loaded.fingerprint,
    }


def kind(row: Row) -> str:
    """Return what distinguishes a model from one of the same mixer: its convolution, positions."""
    if row["positions"]:
        return ", learned positions"
    return "" if row.get("short_conv") else ", no convolution"


def by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the runs of each model, one per seed: `ea-6`, `sa, learned positions`."""
    varying = {"text": []} | DEFAULTS
    return by_variant(rows, lambda row: row["mixer"] + kind(row), varying)


def _bits(rows: Rows, name: str = OURS) -> float:
    return fmean(row["bits_per_byte"] for row in by_name(rows)[name])


def _ratio(rows: Rows) -> float:
    return _bits(rows) / _bits(rows, "sa")


TARGETS = (
    Target("EA-6: bits per byte", _bits, at_most=2.6),
    Target("bits per byte: EA-6 / SA", _ratio, at_most=1.03, unit="×"),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield bits per byte and speed, best model first."""
    body = []
    order = sorted(by_name(rows).items(), key=lambda pair: _mean(pair[1], "bits_per_byte"))
    for name, runs in order:
        bits = Mean.of([row["bits_per_byte"] for row in runs])
        rate = fmean(row["tokens"] / row["seconds"] for row in runs)
        cells = [f"{_mean(runs, 'seconds'):,.0f}", f"{rate:,.0f}", f"{runs[0]['parameters']:,}"]
        body.append([name, bits.text, *cells])
    head = ["mixer", "bits per byte", "training, s", "tokens per second", "parameters"]
    yield Table("Bits per byte of validation text", head, body, [_note(rows)])


def _note(rows: Sequence[Row]) -> str:
    run = TEXT | settings_of(rows[0], DEFAULTS)
    runs = max(map(len, by_name(rows).values()))
    judged = min(run["judged"], run["text_bytes"][1])
    return (
        f"{run['layers']} blocks of {run['hidden']} channels, {run['steps']:,} steps of"
        f" {run['batch_tokens']:,} bytes in rows of {run['length']},"
        f" {seeds(runs)}, one thread, learning rate {run['lr']:g}. Trained on"
        f" {run['text_bytes'][0] / 1e6:.1f} MB in {run['documents'][0]} documents; validated on"
        f" {judged:,} bytes from {run['documents'][1]} others."
    )


def _mean(runs: Sequence[Row], field: str) -> float:
    return fmean(row[field] for row in runs)


def draw(rows: Sequence[Row]) -> Chart:
    """Draw bits per byte along tokens, and along time."""
    return Chart(
        [
            _panel(rows, "(a) After as many tokens", "tokens", "tokens seen, millions", 1e6),
            _panel(rows, "(b) After as much time", "seconds", "minutes on one thread", 60),
        ]
    )


def _panel(rows: Sequence[Row], title: str, field: str, x: str, unit: float) -> Panel:
    """Draw the mean over the seeds of a model at each of its evaluations."""
    looks, points = {}, []
    for name, runs in by_name(rows).items():
        look = LOOKS.get(runs[0]["mixer"], Look(GREY))
        looks[name] = look._replace(dash=DASHES[kind(runs[0])] or look.dash)
        for evaluations in zip(*(row["points"] for row in runs), strict=True):
            place = {"series": name, "x": _mean(evaluations, field) / unit}
            points.append(place | {"y": _mean(evaluations, "bits_per_byte")})
    return lines(title, points, x=x, y="bits per byte", zero=False, looks=looks)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the models that need fewer bits than EA-6, or less time for the same steps."""
    found = by_name(rows)
    for field, unit, words in (
        ("bits_per_byte", " bits per byte", "needs fewer bits than EA-6"),
        ("seconds", " s", "takes less time than EA-6 for the same steps"),
    ):
        for name, runs in found.items() if OURS in found else ():
            own, other = _mean(found[OURS], field), _mean(runs, field)
            if other < own * (1 - SMALLEST):
                yield f"`{name}` {words}: {other:.4g} against {own:.4g}{unit}."
