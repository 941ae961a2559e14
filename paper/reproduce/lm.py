"""`eattn reproduce lm`: language models that differ in their mixer alone, on the same text.

Not in the paper, which has no language model. All have the same blocks, the same number of
parameters, the same steps in the same order; what counts is bits per byte of held-out text, after
as many tokens and after as much time. EA has no sense of nearness of its own, so there is a short
convolution before every mixer; EA and SA without it beside them, and SA with learned positions.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from eattn.data.text import Text, load_text
from eattn.lm import LMConfig, train_lm
from eattn.nn import check_mixer
from paper.bench import show
from paper.bench.experiment import carry_out
from paper.bench.measure import Row
from paper.bench.progress import Tick
from paper.bench.runlog import Journal
from paper.bench.target import Promise, Rows
from paper.report import lm as report
from paper.report.plots import need_matplotlib
from paper.reproduce.pool import run_all

EXACT = "ea"
SAVED = 20.0  # seconds between checkpoints of a run


@dataclass(frozen=True)
class Plan:
    """What to train; the fields after `seeds` are those of `eattn.lm.LMConfig`."""

    mixers: tuple[str, ...] = ("ea-2", "ea-6", EXACT, "sa")
    plain: tuple[str, ...] = ("ea-6", "sa")  # also without the convolution
    positioned: tuple[str, ...] = ("sa",)  # also with learned positions
    seeds: int = 1
    hidden: int = 256
    layers: int = 4
    length: int = 256
    batch_tokens: int = 4096
    steps: int = 300
    evaluations: int = 8
    judged: int = 2**16
    lr: float = 2e-3
    cost: float = 400.0  # seconds of a run on one core, roughly

    def __post_init__(self) -> None:
        for mixer in self.mixers:
            check_mixer(mixer)
        self.settings({"mixer": self.mixers[0], "short_conv": 4, "positions": False, "seed": 0})

    @classmethod
    def quick(cls) -> "Plan":
        """Small models, few steps: who leads may change with more of both."""
        small: Any = dict(hidden=128, layers=2, length=128, batch_tokens=2048, judged=2**14)
        return cls(**small, steps=120, evaluations=6, cost=40.0)

    def settings(self, key: Row) -> LMConfig:
        """Of one run."""
        shared = {f.name for f in fields(LMConfig)} & {f.name for f in fields(self)}
        chosen = {name: key[name] for name in ("mixer", "short_conv", "positions", "seed")}
        chosen |= {"validation_tokens": self.judged}
        return LMConfig(**{name: getattr(self, name) for name in shared} | chosen)

    def work(self) -> Iterator[tuple[Row, float]]:
        """Every run, and about how many seconds it takes."""
        kinds = [(self.mixers, 4, False), (self.plain, None, False), (self.positioned, 4, True)]
        for seed in range(self.seeds):
            for mixers, short_conv, positions in kinds:
                for mixer in mixers:
                    if mixer in self.mixers:
                        key = {"what": "run", "mixer": mixer, "short_conv": short_conv}
                        dear = 3 if mixer == EXACT else 1  # it is quadratic
                        yield key | {"positions": positions, "seed": seed}, self.cost * dear


def run(
    plan: Plan,
    console: Console,
    out: Path,
    *,
    name: str = "lm",
    files: Sequence[Path] = (),
    jobs: int | None = None,
) -> list[Path]:
    """Rows to out/name.jsonl as runs end, and a picture of them.

    `files` are the text; by default it is the standard library of this Python.
    """
    need_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    text = load_text(files)  # what fails does so before the work
    path, work = out / f"{name}.jsonl", list(plan.work())

    def measure(journal: Journal, tick: Tick) -> None:
        # Of this run alone: its date is kept when it goes on.
        folder = out / f".{name}-{journal.origin['date'].replace(':', '')}"
        for old in set(out.glob(f".{name}-2*")) - {folder}:
            shutil.rmtree(old, ignore_errors=True)
        one = partial(measure_run, plan=plan, files=tuple(files), folder=folder)
        run_all(journal, work, one, tick, jobs=jobs)
        shutil.rmtree(folder, ignore_errors=True)

    rows = carry_out(
        path,
        "lm",
        asdict(plan) | {"text": about(text)},
        console,
        costs=work,
        measure=measure,
        promises=PROMISES,
    )
    print_rows(rows, console)
    return [path, *report.redraw(path)]


def about(text: Text) -> Row:
    """How much of it there is, and which."""
    sizes = {
        name: {"documents": len(part), "bytes": sum(len(document.content) for document in part)}
        for name, part in (("learnt", text.train), ("held_out", text.validation))
    }
    return {**sizes, "fingerprint": text.fingerprint}


def measure_run(key: Row, *, plan: Plan, files: Sequence[Path], folder: Path) -> Row:
    """One training, gone on with where it was cut off: every evaluation is a point."""
    mine = folder / "-".join(str(key[name]) for name in key if name != "what")
    settings = plan.settings(key)
    places: Any = dict(checkpoint=mine, checkpoint_seconds=SAVED)
    learnt = train_lm(load_text(files), settings, **places)
    last = learnt.points[-1]
    return {
        "bits_per_byte": last.bits_per_byte,
        "tokens": last.tokens,
        "seconds": last.seconds,
        "parameters": learnt.parameters,
        "points": [asdict(point) for point in learnt.points],
        "threads": 1,
    }


# ---- what is aimed at, and the table -------------------------------------------------------------


def _bits(rows: Rows, mixer: str) -> float:
    """The mean over the seeds of a mixer with the convolution and without positions."""
    of = report.by_name(rows).get(mixer)
    if of is None:
        raise LookupError(f"no run of {mixer}")
    return fmean(row["bits_per_byte"] for row in of)


PROMISES = (
    Promise("EA-6: bits per byte", lambda rows: _bits(rows, "ea-6"), 2.6, unit=""),
    Promise("bits per byte: EA-6 / SA", lambda rows: _bits(rows, "ea-6") / _bits(rows, "sa"), 1.03),
)


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """The table, what was aimed at, and where it was measured."""
    head, lines = report.table(rows)
    out = show.table("language models", *head)
    for cells in lines:
        out.add_row(*cells)
    console.print(out)
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows))
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
