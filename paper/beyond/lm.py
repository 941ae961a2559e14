"""Beyond the paper: language models.

Byte-level language models that differ only in their mixer are trained on the sources of Python's
standard library and compared by the bits per byte of validation text. Where a mixer has more
parameters than EA-6, its feed-forward networks are narrower, so that all models have the same
number within 1 %. EA does not know which tokens are near, so a short convolution precedes every
mixer. Some models are also trained without it, and SA with learned positions, 2 % more parameters.

Each mixer trains for 300 steps at several learning rates, and the bits per byte of the validation
text select the best. If that is the smallest or the largest one, the next is tried as well. All
other runs of the mixer use the selected learning rate; EA-2 and exact EA have only been trained at
0.002. Longer runs follow, with the better softmax attention of the runs of 1,000 steps in the
longest ones, and runs on classic books. All runs train in mixed precision (bfloat16), which is two
to three times as fast on CPUs that have instructions for it. The models of books have read rows of
256 bytes and are evaluated at positions up to 16,384 as well: the same bytes are predicted after
more and more text.

Runs share the machine with each other. Training steps of all mixers are therefore timed in turn,
forward and backward on one batch in float32.

Some runs have not been made yet: gated linear attention, linear attention for 1,000 steps, EA-2,
exact EA, and learning rates of 0.001 and 0.008 for some mixers.
"""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from eattn.data.locate import VARIABLE
from eattn.data.text import Document, load_text
from eattn.hf import EAForCausalLM
from eattn.lm import LMConfig, train_lm
from eattn.lm.tokenizer import BYTES
from eattn.train import isolated
from paper.harness.chart import DOTTED, GREY, LOOKS, Chart, Look, Panel, lines
from paper.harness.measure import Candidate, Work, timed_rows
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog, matches, rows_of
from paper.harness.scores import Mean, seeds
from paper.harness.settings import by_variant, defaults, key_of, settings_of
from paper.harness.sweep import sweep
from paper.harness.table import Table, grid, seconds, tokens
from paper.harness.target import Rows, Target

TITLE = "Language models"
OURS, FORGETTING = "ea-6", "ea-6+decay"
SOFTMAX = ("sa", "sa+rope")
BOOKS = ("classic_books",)  # a folder in $EATTN_DATA/text
LADDER = tuple(1e-3 * 2.0**n for n in range(-4, 8))  # learning rates beyond those of a plan
LONG, LONGEST = 1000, 3000  # steps
FFN_STEP = 16  # widths of the feed-forward networks differ by multiples of this
# Evaluation by position: from half a row to 64 rows, on segments spread over a document.
DOUBLINGS, SEGMENTS = 7, 32
# Size of the text of the rows that do not store it: documents and bytes, training and validation.
TEXT = {"documents": [356, 27], "text_bytes": [7427222, 390873]}
DASHES = {"": None, ", no convolution": DOTTED, ", learned positions": [8, 3, 2, 3]}
CHECKPOINT_SECONDS = 20.0
SMALLEST = 0.0005  # smaller relative differences are not shown by three digits
Y = "bits per byte"


@dataclass(frozen=True)
class Plan:
    """Mixers to train, in stages; the fields after `seeds` are those of `eattn.lm.LMConfig`."""

    mixers: tuple[str, ...] = (
        *(OURS, FORGETTING, "ea-6+gate", "ea-q25r12+decay"),
        *("la", "la+gate", *SOFTMAX),
    )
    lrs: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    single: tuple[str, ...] = ("ea-2", "ea")  # mixers with one learning rate
    repeated: tuple[str, ...] = (OURS, FORGETTING)  # also with the other seeds
    plain: tuple[str, ...] = (OURS, FORGETTING, "sa")  # also without the convolution
    positioned: tuple[str, ...] = ("sa",)  # also with learned positions
    long: tuple[str, ...] = mixers  # also for 1,000 steps, with all seeds
    longest: tuple[str, ...] = (OURS, FORGETTING, "ea-6+gate")  # for 3,000 steps, and the better SA
    books: tuple[str, ...] = (*longest, "sa+rope")  # on classic books, and the better SA
    text: tuple[str, ...] = ()  # files or folders; the standard library by default
    rounds: int = 5  # of the timed training steps
    seeds: int = 2
    hidden: int = 256
    layers: int = 4
    length: int = 256
    batch_tokens: int = 4096
    steps: int = 300
    lr: float = 2e-3
    evaluations: int = 8
    validation_tokens: int = 2**16
    precision: str = "bfloat16"  # float32 is faster on CPUs without instructions for bfloat16
    jobs: int | None = None  # runs side by side; one per core by default

    def runs(self, rows: Rows) -> Iterator[Key]:
        """Yield the settings of the training runs, which are the keys of their rows.

        Runs at the best learning rate of a mixer follow once `rows` contain its whole sweep, and
        runs of the better softmax attention once they contain its long runs.
        """
        yield from map(self.key, self.single)
        tuned = {}
        for mixer in self.mixers:
            lrs, best = self.select(mixer, rows)
            yield from (replace(self, lr=lr).key(mixer) for lr in lrs)
            if best is not None:
                tuned[mixer] = replace(self, lr=best)
        for mixer, plan in tuned.items():
            if mixer in self.repeated:
                yield from (plan.key(mixer, seed) for seed in range(1, self.seeds))
            if mixer in self.plain:
                yield plan.key(mixer, short_conv=None)
            if mixer in self.positioned:
                yield plan.key(mixer, positions=True)
        long = {
            mixer: [replace(plan, steps=LONG).key(mixer, seed) for seed in range(self.seeds)]
            for mixer, plan in tuned.items()
            if mixer in self.long
        }
        for keys in long.values():
            yield from keys
        softmax = better_softmax({m: _found(rows, keys) for m, keys in long.items()}, self.seeds)
        for mixers, changes in (
            (self.longest, {"steps": LONGEST}),
            (self.books, {"steps": LONG, "text": BOOKS}),
        ):
            for mixer in dict.fromkeys((*mixers, *softmax)) if mixers else ():
                if mixer in tuned:
                    yield replace(tuned[mixer], **changes).key(mixer)

    def select(self, mixer: str, rows: Rows) -> tuple[list[float], float | None]:
        """Return the learning rates to try, and the best one if all of them have rows."""
        return sweep(
            self.lrs,
            lambda lr: _found(rows, [replace(self, lr=lr).key(mixer)]),
            lambda row: -float(row["bits_per_byte"]),
            ladder=LADDER,
        )

    def timed(self) -> Iterator[Key]:
        """Yield the keys of the training steps."""
        names = ("hidden", "layers", "length", "batch_tokens")
        sizes = {name: getattr(self, name) for name in names}
        for mixer in dict.fromkeys((*self.mixers, *self.single)):
            width = equal_ffn(mixer, self.hidden, self.layers)
            yield {"what": "step", "mixer": mixer, "ffn": width} | sizes

    def key(
        self, mixer: str, seed: int = 0, *, short_conv: int | None = 4, positions: bool = False
    ) -> Row:
        """Return the settings of one run."""
        key = {"what": "run", "mixer": mixer, "short_conv": short_conv, "positions": positions}
        names = [Path(path).name for path in self.text]  # the same on every machine
        width = equal_ffn(mixer, self.hidden, self.layers)
        return key | {"seed": seed, "text": names or None, "ffn": width} | key_of(self, DEFAULTS)


DEFAULTS = defaults(Plan, after="seeds")


def plan(quick: bool) -> Plan:
    """Return the full plan, or small models and few steps: more of both may change the order."""
    if not quick:
        return Plan()
    few = Plan((OURS, FORGETTING, "sa"), (2e-3,), long=(), longest=(), books=(), seeds=1)
    small = replace(few, hidden=128, layers=2, length=128, batch_tokens=2048)
    return replace(small, steps=120, evaluations=6, validation_tokens=2**14, precision="auto")


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Time training steps, and train the models of the plan until no run is missing.

    Several models train side by side. An interrupted run is resumed.
    """
    for text in (plan.text, BOOKS) if plan.books else (plan.text,):
        load_text(files(text))  # a missing file fails before the work
    for key in plan.runs(log.rows):
        model_settings(key)
    yield from log.measure_together(plan.timed(), partial(time_steps, plan.rounds))
    folder = None if log.path is None else log.path.parent / f".{log.path.stem}"
    measure = partial(measure_run, text=plan.text, folder=folder)
    while missing := [key for key in plan.runs(log.rows) if not log.has(key)]:
        for _ in run_all(log, missing, measure, jobs=plan.jobs):
            pass
    for key in plan.runs(log.rows):
        yield from log.find(key)


@cache
def equal_ffn(mixer: str, hidden: int, layers: int) -> int | None:
    """Return the width of the feed-forward networks with which a model is as large as EA-6.

    None stands for the default width, 4 * hidden.
    """

    def parameters(mixer: str, ffn: int = 4 * hidden) -> int:
        config = LMConfig(mixer=mixer, hidden=hidden, layers=layers, ffn=ffn)
        with torch.device("meta"):
            return sum(p.numel() for p in EAForCausalLM(config.model(BYTES + 1)).parameters())

    own = parameters(OURS)
    steps = (parameters(mixer) - own) / (parameters(OURS, 4 * hidden + FFN_STEP) - own)
    return 4 * hidden - round(steps) * FFN_STEP if round(steps) else None


def better_softmax(runs: dict[str, list[Row]], count: int) -> list[str]:
    """Return the softmax attention with the fewest bits if all have `count` runs, or nothing."""
    if any(len(runs.get(mixer, ())) < count for mixer in SOFTMAX):
        return []
    return [min(SOFTMAX, key=lambda mixer: _mean(runs[mixer], "bits_per_byte"))]


def files(text: Sequence[str]) -> list[Path]:
    """Return the files or folders of a text."""
    if tuple(text) != BOOKS:
        return [Path(path) for path in text]
    if not os.environ.get(VARIABLE):
        raise ValueError(
            f"{BOOKS[0]} is read from the folder text/{BOOKS[0]} of {VARIABLE}, which is not set;"
            " --set books= leaves its runs out"
        )
    folder = Path(os.environ[VARIABLE], "text", *BOOKS)
    return [folder / "train.txt.gz", folder / "valid.txt.gz"]


def model_settings(key: Key) -> LMConfig:
    """Return the settings of one run; they raise if they do not fit together."""
    known = {field.name for field in fields(LMConfig)}
    settings = settings_of(key, DEFAULTS)
    values = {n: v for n, v in settings.items() if n in known}
    return LMConfig(**values | {"short_conv": key["short_conv"]})


def time_steps(rounds: int, keys: Sequence[Key]) -> Iterator[Row]:
    """Time training steps in turn, with one thread."""
    work: list[tuple[Row, Candidate]] = [({}, Candidate(step(key), threads=1)) for key in keys]
    return timed_rows(work, rounds=rounds)


def step(key: Key) -> Work:
    """Return a training step on random bytes, without the optimizer."""
    config = LMConfig(**{name: value for name, value in key.items() if name != "what"})
    with isolated(0):
        model = EAForCausalLM(config.model(BYTES + 1))
        x = torch.randint(BYTES, (config.batch_tokens // config.length, config.length))

    def run() -> None:
        model.zero_grad()
        model(input_ids=x, labels=x).loss.backward()

    return run


def measure_run(key: Key, *, text: Sequence[str], folder: Path | None) -> Row:
    """Train one model, from its last checkpoint if `folder` has one; every evaluation is a point.

    The checkpoint is removed when the run ends. Models of classic books are also evaluated by
    position.
    """
    options: dict[str, Any] = {}
    if folder is not None:
        own = folder / ",".join(f"{n}={v}" for n, v in key.items() if v is not None)
        options = {"checkpoint": own, "checkpoint_seconds": CHECKPOINT_SECONDS}
    books = key["text"] == list(BOOKS)
    loaded, settings = load_text(files(BOOKS if books else text)), model_settings(key)
    learned = train_lm(loaded, settings, **options)
    last, parts = learned.points[-1], (loaded.train, loaded.validation)
    row = {
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
    if books:
        longest = max(loaded.validation, key=lambda document: len(document.content))
        row["by_position"] = bits_by_position(learned.model, longest, settings.length)
    if folder is not None:
        shutil.rmtree(own)
    return row


@torch.no_grad()
def bits_by_position(model: nn.Module, document: Document, length: int) -> dict[str, float]:
    """Return the bits per byte after a to 2a - 1 bytes of text, for a = length / 2, length, ...

    The same bytes are predicted for every a, in pieces of a bytes that follow the a bytes before
    them. They are segments spread evenly over the document.
    """
    content = torch.frombuffer(bytearray(document.content), dtype=torch.uint8).long()
    spans = [length // 2 * 2**n for n in range(DOUBLINGS)]
    most = spans[-1]
    if len(content) < 2 * most:
        raise ValueError(f"{document.name} must have at least {2 * most} bytes, got {len(content)}")
    starts = np.linspace(most, len(content) - most, SEGMENTS).astype(int)
    found = {}
    for span in spans:
        pieces = [content[at - span : at + span] for s in starts for at in range(s, s + most, span)]
        nats = 0.0
        for batch in torch.stack(pieces).split(most // span):
            logits = model(batch[:, :-1], use_cache=False, logits_to_keep=span).logits
            labels = batch[:, span:].flatten()
            nats += float(F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum"))
        found[str(span)] = nats / math.log(2) / (SEGMENTS * most)
    return found


def kind(row: Row) -> str:
    """Return what distinguishes a model from one of the same mixer: its convolution, positions."""
    if row["positions"]:
        return ", learned positions"
    return "" if row.get("short_conv") else ", no convolution"


def stages(rows: Rows) -> dict[tuple[tuple[str, ...], int], list[Row]]:
    """Split runs by their text, which is empty for the standard library, and number of steps."""
    found: dict[tuple[tuple[str, ...], int], list[Row]] = {}
    for row in rows_of(rows, "run"):
        run = settings_of(row, DEFAULTS)
        found.setdefault((tuple(run.get("text", ())), run["steps"]), []).append(row)
    return dict(sorted(found.items()))


def by_model(rows: Rows) -> dict[str, list[Row]]:
    """Split the runs of a stage by model, with names like `ea-6` and `sa, learned positions`."""
    varying = {name: value for name, value in DEFAULTS.items() if name != "lr"}
    return by_variant(rows, lambda row: row["mixer"] + kind(row), varying)


def chosen(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the runs of each model of a stage at its best learning rate, one per seed."""
    found = {}
    for name, runs in by_model(rows).items():
        first = min(row["seed"] for row in runs)
        swept = [row for row in runs if row["seed"] == first]
        best = min(swept, key=lambda row: (row["bits_per_byte"], lr_of(row)))
        found[name] = [row for row in runs if lr_of(row) == lr_of(best)]
    return found


def lr_of(row: Row) -> float:
    return float(row.get("lr", DEFAULTS["lr"]))


def bits(rows: Rows, name: str = OURS, *, least: int = 1, steps: int = Plan.steps) -> float:
    """Return a model's mean bits per byte of Python sources, or raise with fewer seeds."""
    runs = chosen(stages(rows)[(), steps])[name]
    if len(runs) < least:
        raise LookupError(f"{name} must have {seeds(least)}, got {len(runs)}")
    return _mean(runs, "bits_per_byte")


def _ratio(rows: Rows, name: str, other: str, *, least: int = 1) -> float:
    return bits(rows, name, least=least) / bits(rows, other, least=least)


def _growth(rows: Rows) -> float:
    """Return the bits per byte at positions 8k to 16k, relative to 256 to 512."""
    found = chosen(stages(rows)[BOOKS, LONG])[FORGETTING][0]["by_position"]
    return float(found["8192"] / found["256"])


TARGETS = (
    Target("EA-6: bits per byte", bits, at_most=2.6),
    Target(
        "bits per byte: EA-6 / SA", partial(_ratio, name=OURS, other="sa"), at_most=1.03, unit="×"
    ),
    Target(
        "bits per byte: EA-6+decay / EA-6, 2 seeds",
        partial(_ratio, name=FORGETTING, other=OURS, least=2),
        at_most=0.92,
        unit="×",
    ),
    Target("EA-6+decay: positions 8k–16k / 256–512", _growth, at_most=1.01, unit="×"),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield bits per byte of each stage, best model first, with the details; then the times."""
    for (text, steps), runs in stages(rows).items():
        found = chosen(runs)
        where = f" of {', '.join(text)}" * bool(text)
        title = f"Bits per byte of validation text{where}, {steps:,} steps"
        yield Table(title, *_compared(found), [_note(runs), *_gains(found)])
        swept = [settings_of(row, DEFAULTS) for row in runs if not (kind(row) or row["seed"])]
        if len({row["mixer"] for row in swept}) < len(swept):
            cell = "{bits_per_byte:.3f}".format_map
            yield grid("… by learning rate, seed 0", swept, "lr", cell)
        placed = [run for of in found.values() for run in of if "by_position" in run]
        if placed:
            spans = list(placed[0]["by_position"])
            head = ["positions", *(f"{tokens(int(a))}–{tokens(2 * int(a))}" for a in spans)]
            body = [[r["mixer"], *(f"{r['by_position'][a]:.3f}" for a in spans)] for r in placed]
            yield Table("… by position", head, body, [_position_note(placed[0])])
    timed = sorted(rows_of(rows, "step"), key=lambda row: float(row["p50"]))
    if timed:
        body = [
            [row["mixer"], seconds(row["p50"]), f"{row['batch_tokens'] / row['p50']:,.0f}"]
            for row in timed
        ]
        note = f"{timed[0]['batch_tokens']:,} bytes in rows of {timed[0]['length']}, one thread."
        yield Table(
            "Time of a training step", ["mixer", "median", "bytes per second"], body, [note]
        )


def _compared(found: dict[str, list[Row]]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of the table of one stage."""
    means = {name: _mean(runs, "bits_per_byte") for name, runs in found.items()}
    others = {
        "/ EA-6": means.get(OURS),
        "/ better SA": min((means[name] for name in SOFTMAX if name in means), default=None),
    }
    body = []
    for name in sorted(means, key=means.__getitem__):
        runs = found[name]
        ratios = [f"{means[name] / other:.3f}" if other else "" for other in others.values()]
        score = Mean.of([row["bits_per_byte"] for row in runs]).text
        body.append([name, score, *ratios, f"{lr_of(runs[0]):g}", f"{runs[0]['parameters']:,}"])
    return ["mixer", "bits per byte", *others, "lr", "parameters"], body


def _note(rows: Sequence[Row]) -> str:
    run = TEXT | settings_of(rows[0], DEFAULTS)
    runs = max(map(len, chosen(rows).values()))
    validation = min(run["validation_tokens"], run["text_bytes"][1])
    return (
        f"{run['layers']} blocks of {run['hidden']} channels, {run['steps']:,} steps of"
        f" {run['batch_tokens']:,} bytes in rows of {run['length']}, {'up to ' * (runs > 1)}"
        f"{seeds(runs)}. Trained on"
        f" {run['text_bytes'][0] / 1e6:.1f} MB in {_documents(run['documents'][0])}; validated on"
        f" {validation:,} bytes from {run['documents'][1]} other{'s' * (run['documents'][1] > 1)}."
    )


def _documents(count: int) -> str:
    return f"{count} document" + "s" * (count > 1)


def _gains(found: dict[str, list[Row]]) -> Iterator[str]:
    """Yield what the short convolution saves."""
    saved = []
    for name, runs in found.items():
        if without := found.get(f"{name}, no convolution"):
            gain = _mean(without, "bits_per_byte") - _mean(runs, "bits_per_byte")
            saved.append(f"{gain:.3f} with `{name}`")
    if saved:
        yield f"Bits per byte that the short convolution saves: {', '.join(saved)}."


def _position_note(row: Row) -> str:
    run = settings_of(row, DEFAULTS)
    count = SEGMENTS * max(map(int, row["by_position"]))
    return (
        f"A model that has read rows of {run['length']} bytes predicts the same {count:,} bytes"
        " after as many bytes as the column says."
    )


def _mean(runs: Sequence[Row], field: str) -> float:
    return fmean(row[field] for row in runs)


def draw(rows: Sequence[Row]) -> Chart:
    """Draw bits per byte along tokens, in more steps, and by position."""
    found = stages(rows)
    (_, steps), runs = next(iter(found.items()))
    panels = [_panel(runs, f"(a) {steps:,} steps")]
    if long := found.get(((), LONG)):
        panels.append(_panel(long, f"(b) {LONG:,} steps"))
    points = [
        {"series": name, "x": int(a), "y": value}
        for name, of in chosen(found.get((BOOKS, LONG), [])).items()
        for a, value in of[0]["by_position"].items()
    ]
    if points:
        title = "(c) Classic books, by position"
        panels.append(lines(title, points, x="bytes before", y=Y, log="x", zero=False))
    return Chart(panels)


def _panel(stage: Sequence[Row], title: str) -> Panel:
    """Draw the mean over the seeds of a model at each of its evaluations."""
    looks, points = {}, []
    for name, runs in chosen(stage).items():
        look = LOOKS.get(runs[0]["mixer"], Look(GREY))
        looks[name] = look._replace(dash=DASHES[kind(runs[0])] or look.dash)
        for evaluations in zip(*(row["points"] for row in runs), strict=True):
            place = {"series": name, "x": evaluations[0]["tokens"] / 1e6}
            points.append(place | {"y": _mean(evaluations, "bits_per_byte")})
    return lines(title, points, x="tokens seen, millions", y=Y, zero=False, looks=looks)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the models that need fewer bits than ours, and those with faster training steps."""
    for (text, steps), runs in stages(rows).items():
        means = {name: _mean(of, "bits_per_byte") for name, of in chosen(runs).items()}
        own = FORGETTING if FORGETTING in means else OURS
        where = ", ".join([f"{steps:,} steps", *text])
        ours = means.get(own, -math.inf)
        for name, value in means.items():
            if value < ours * (1 - SMALLEST):
                numbers = f"{value:.4g} against {ours:.4g} bits per byte"
                yield f"{where}: `{name}` needs fewer bits than `{own}`: {numbers}."
    times = {row["mixer"]: row["p50"] for row in rows_of(rows, "step")}
    faster = [f"`{m}` {seconds(t)}" for m, t in times.items() if t < times.get(FORGETTING, 0.0)]
    if faster:
        own_time = seconds(times[FORGETTING])
        yield f"Time of a training step: {', '.join(faster)}; `{FORGETTING}` {own_time}."


def _found(rows: Rows, keys: Sequence[Key]) -> list[Row]:
    return [row for key in keys for row in rows if matches(row, key)]
