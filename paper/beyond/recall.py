"""Beyond the paper: associative recall.

How many pairs of key and value can a mixer keep apart? The task is multi-query associative recall
(MQAR) as in Zoology (Arora et al., 2023): pairs of key and value, then each key once more, and the
model must predict its value. Small states are known to be weak here: a few numbers per channel
cannot hold many pairs. The quadratures `ea-qN` differ in the width of their grid and in the number
of their nodes, which is the size of their state. The models have two layers with a short
convolution, which tells a value its key, and differ only in the mixer. They train on all numbers of
pairs at once and never see a sample twice.

Each mixer trains with one seed at several learning rates, and validation selects the best. If that
is the smallest or the largest one, the next is tried as well. The other seeds, the longer runs and
the runs with more pairs use the selected learning rate.

Does forgetting hurt? Mixers with a decay or a gate train on the same task. Where keys change their
value, forgetting may help: in a second task each key comes two or three times, each time with
another value, and the last value counts. Of these runs, only `ea-q25r12+decay` on the first task
has been made yet.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from eattn.hf import EAConfig, EAForCausalLM
from eattn.nn import check_mixer
from eattn.train import Task, TrainConfig, isolated, train
from paper.harness.chart import DOTTED, GREY, LOOKS, Chart, Look, Panel, Point, lines
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog, matches
from paper.harness.scores import Mean, seeds
from paper.harness.settings import by_variant, defaults, key_of, settings_of
from paper.harness.sweep import sweep
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Associative recall"
EXACT = "ea"  # quadratic: a run takes 1.5 hours, so it has two learning rates and one seed
SMALL, LARGE = "ea-q25r12", "ea-q65r16"  # quadratures with targets
OURS = ("ea-6", SMALL, LARGE, f"{SMALL}+decay")
LINEAR = "la"
GUESS = "any value of the sample"  # models learn this first
GUESS_OF_KEY = "any value of the key"
ALL_LOOKS = LOOKS | dict.fromkeys((GUESS, GUESS_OF_KEY), Look(GREY, DOTTED))
SHARE = "share of correct answers"
LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)  # learning rates beyond those of a plan
LONGER = {"steps": 6000}
HARDER = {"pairs": (4, 8, 16, 32, 64, 128)}
UPDATES: Row = {"pairs": (4, 8, 16), "updates": True}
UPDATE_LRS, UPDATE_SEEDS = (3e-3, 1e-2), 2
VALIDATION, TEST = 1, 2  # streams of random numbers; training uses stream 0
EVALUATED = 64  # samples per batch of the evaluation
EARLY = 0.01  # exponent of the distribution of the queries' positions: most come early
NO_LABEL = -100
SMALLEST = 0.01  # smaller differences in accuracy are chance
Make = Callable[..., Row]  # from a learning rate and a seed to the key of a run


@dataclass(frozen=True)
class Plan:
    """Mixers to train, in stages; a sample of p pairs has 4 p tokens."""

    mixers: tuple[str, ...] = (
        *("ea-2", "ea-6"),
        *("ea-q17", "ea-q25", SMALL, "ea-q33r16", LARGE),
        *(EXACT, LINEAR, "deltanet", "sa"),
        *("ea-6+decay", "ea-6+gate", f"{SMALL}+decay", f"{SMALL}+gate"),
    )
    lrs: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    longer: tuple[str, ...] = ("ea-6", SMALL, LINEAR, "deltanet")  # mixers that also train longer
    harder: tuple[str, ...] = ("ea-6", LARGE, LINEAR, "deltanet", "sa")  # also with more pairs
    updated: tuple[str, ...] = (  # mixers that also train on keys that change their value
        *("ea-6", "ea-6+decay", SMALL, f"{SMALL}+decay", f"{SMALL}+gate"),
        *(LINEAR, "la+gate", "deltanet", "sa"),
    )
    seeds: int = 3
    pairs: tuple[int, ...] = (4, 8, 16, 32)
    hidden: int = 64
    layers: int = 2
    heads: int = 1  # of sa, la and deltanet; one, as in Zoology, holds the most pairs
    vocab: int = 512
    batch: int = 64
    steps: int = 1500
    samples: int = 512  # of each number of pairs, for validation and for the test
    updates: bool = False  # keys come two or three times with other values; the last one counts
    jobs: int | None = None  # runs side by side; one per core by default

    def runs(self, rows: Rows) -> Iterator[Key]:
        """Yield the settings of the training runs, which are the keys of their rows.

        Runs at the best learning rate of a mixer follow once `rows` contain its whole sweep.
        """
        for mixer in self.mixers:
            make: Make = partial(self.key, mixer)
            if mixer == EXACT:
                yield from map(make, self.lrs[:2])
                continue
            lrs, best = select(make, self.lrs, rows, ladder=LADDER)
            yield from map(make, lrs)
            if best is None:
                continue
            yield from (make(best, seed) for seed in range(1, self.seeds))
            if mixer in self.longer:
                yield make(best) | LONGER
            if mixer in self.harder:
                yield make(best) | HARDER
        changing = replace(self, **UPDATES)
        for mixer in self.updated:
            make = partial(changing.key, mixer)
            lrs, best = select(make, UPDATE_LRS, rows)
            yield from map(make, lrs)
            if best is not None:
                yield from (make(best, seed) for seed in range(1, UPDATE_SEEDS))

    def key(self, mixer: str, lr: float, seed: int = 0) -> Row:
        return {"what": "run", "mixer": mixer, "lr": lr, "seed": seed} | key_of(self, DEFAULTS)


DEFAULTS = defaults(Plan, after="seeds")


def plan(quick: bool) -> Plan:
    """Return the full plan, or one with hardly enough steps to learn the task."""
    if not quick:
        return Plan()
    mixers = ("ea-6", SMALL, LINEAR, "deltanet", "sa")
    few = Plan(mixers, lrs=(3e-3,), longer=(), harder=(), updated=(), seeds=1)
    return replace(few, pairs=(4, 8, 16), steps=300, samples=128)


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Train the models of the plan, several side by side, until no run is missing."""
    for mixer in (*plan.mixers, *plan.updated):
        check_mixer(mixer)
    while missing := [key for key in plan.runs(log.rows) if not log.has(key)]:
        for _ in run_all(log, missing, measure_run, jobs=plan.jobs):
            pass
    for key in plan.runs(log.rows):
        yield from log.find(key)


def best_run(runs: Rows) -> Row:
    """Return the run of the first seed with the best validation; the lower rate wins a tie."""
    first = min(row["seed"] for row in runs)
    return max(
        (row for row in runs if row["seed"] == first),
        key=lambda row: (row["validation"], -row["lr"]),
    )


def select(
    make: Make, lrs: Sequence[float], rows: Rows, *, ladder: Sequence[float] = ()
) -> tuple[list[float], float | None]:
    """Return the learning rates to try, and the best on validation if all of them have rows."""
    return sweep(
        lrs,
        lambda lr: [row for row in rows if matches(row, make(lr))],
        lambda row: float(row["validation"]),
        ladder=ladder,
        enough=1.0,
    )


# ---- samples -------------------------------------------------------------------------------------


def recall(
    samples: int,
    *,
    pairs: int,
    vocab: int,
    rng: np.random.Generator,
    length: int | None = None,
    updates: bool = False,
) -> tuple[Tensor, Tensor]:
    """Draw samples of the task: tokens [samples, length], and labels of the same shape.

    A label is the value to predict after a token, or NO_LABEL. Keys come from the lower half of the
    vocabulary and values from the upper half. No key occurs twice in a sample; with `updates` half
    of the keys come twice and half three times, in random order, and the last value is the label.
    After the pairs each key comes once more, early rather than late, between random tokens. The
    length is even; by default every other token after the pairs is a query.
    """
    writes = 2 * pairs + pairs // 2 if updates else pairs
    half, context, least = vocab // 2, 2 * writes, 2 * (writes + pairs)
    length = least if length is None else length
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, got {pairs}")
    if length < least or length % 2:
        raise ValueError(
            f"length must be even and at least {least} for {pairs} pairs, got {length}"
        )
    if half - 1 < writes:
        raise ValueError(f"vocab must be at least {2 * writes + 2} for {pairs} pairs, got {vocab}")
    keys = 1 + _choose(rng, samples, half - 1, pairs)
    values = half + _choose(rng, samples, vocab - half, writes)
    tokens = np.zeros((samples, length), np.int64)
    tokens[:, 1:context:2] = values
    if updates:
        order = _choose(rng, samples, writes, writes) % pairs  # number of the key of each pair
        tokens[:, 0:context:2] = np.take_along_axis(keys, order, 1)
        written, values = values, np.zeros_like(keys)
        np.put_along_axis(values, order, written, 1)  # a later value replaces an earlier one
    else:
        tokens[:, 0:context:2] = keys
    space = (length - context) // 2
    weights = np.power(np.arange(1, space + 1), EARLY - 1, dtype=np.float64)
    positions = context + 2 * _choose(rng, samples, space, pairs, weights)
    np.put_along_axis(tokens, positions, keys, 1)
    labels = np.full_like(tokens, NO_LABEL)
    np.put_along_axis(labels, positions, values, 1)
    empty = tokens == 0
    tokens[empty] = rng.integers(vocab, size=int(empty.sum()))
    return torch.from_numpy(tokens), torch.from_numpy(labels)


def _choose(
    rng: np.random.Generator,
    samples: int,
    count: int,
    wanted: int,
    weights: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """Choose `wanted` of `count` items without repeats for each sample, in random order.

    The items with the shortest exponential waiting times are chosen; a weight shortens the time.
    """
    times = rng.exponential(size=(samples, count))
    if weights is not None:
        times = times / weights
    return np.argsort(times, axis=1)[:, :wanted]


class Draws:
    """Training samples, drawn when a batch needs them; a batch has one number of pairs."""

    def __init__(self, settings: Row) -> None:
        self.settings = settings

    def __len__(self) -> int:
        return int(self.settings["batch"] * self.settings["steps"])

    def collate(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        first, every = indices[0], self.settings["pairs"]
        rng = np.random.default_rng([self.settings["seed"], 0, first])
        return draw_samples(len(indices), every[first % len(every)], self.settings, rng)


def draw_samples(
    count: int, pairs: int, settings: Row, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    return recall(count, pairs=pairs, vocab=settings["vocab"], updates=settings["updates"], rng=rng)


# ---- one run -------------------------------------------------------------------------------------


def measure_run(key: Key) -> Row:
    """Train one model and return its accuracy for each number of pairs."""
    settings = settings_of(key, DEFAULTS)
    with isolated(settings["seed"]):
        model = EAForCausalLM(
            EAConfig(
                vocab_size=settings["vocab"],
                hidden_size=settings["hidden"],
                num_hidden_layers=settings["layers"],
                num_attention_heads=settings["heads"],
                mixer=settings["mixer"],
            )
        )
    config = TrainConfig(
        epochs=1,
        batch_size=settings["batch"],
        lr=settings["lr"],
        schedule="cosine",
        warmup=0.1,
        weight_decay=0.1,
        keep="last",
        seed=settings["seed"],
    )
    history = train(model, Task(Draws(settings), loss), config)
    validation = accuracies(model, settings, VALIDATION)
    return {
        "accuracy": accuracies(model, settings, TEST),
        "validation": fmean(validation.values()),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": history.seconds,
        "state_bytes": state_bytes(model, settings),
    }


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    tokens, labels = batch
    return F.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())


@torch.no_grad()
def accuracies(model: nn.Module, settings: Row, stream: int) -> dict[str, float]:
    """Return the share of correct answers by number of pairs; all models get the same samples."""
    found = {}
    for pairs in settings["pairs"]:
        rng = np.random.default_rng([stream, pairs])
        tokens, labels = draw_samples(settings["samples"], pairs, settings, rng)
        answers = torch.cat([model(part).logits.argmax(-1) for part in tokens.split(EVALUATED)])
        asked = labels != NO_LABEL
        found[str(pairs)] = float((answers == labels)[asked].double().mean())
    return found


@torch.no_grad()
def state_bytes(model: EAForCausalLM, settings: Row) -> int:
    """Return the size of the cache after the longest sample."""
    tokens, _ = draw_samples(1, max(settings["pairs"]), settings, np.random.default_rng(0))
    return int(model(tokens, use_cache=True).past_key_values.nbytes)


def stages(rows: Rows) -> list[list[Row]]:
    """Split runs by their task and steps; the most runs come first, changing keys last."""
    found: dict[tuple[bool, str, int], list[Row]] = {}
    for row in rows:
        run = settings_of(row, DEFAULTS)
        task = (run["updates"], str(list(run["pairs"])), run["steps"])
        found.setdefault(task, []).append(row)
    return [found[task] for task in sorted(found, key=lambda task: (task[0], -len(found[task])))]


def chosen(rows: Rows) -> dict[str, list[Row]]:
    """Return the runs of each mixer at its best learning rate, one per seed."""
    order = {mixer: n for n, mixer in enumerate(Plan.mixers)}
    rows = sorted(rows, key=lambda row: order.get(row["mixer"], len(order)))
    found = by_variant(rows, lambda row: row["mixer"], DEFAULTS)
    return {
        name: [row for row in runs if row["lr"] == best_run(runs)["lr"]]
        for name, runs in found.items()
    }


def means(runs: Rows) -> dict[int, Mean]:
    """Return mean and deviation of the accuracy over seeds, by number of pairs."""
    counts = runs[0]["accuracy"]
    return {int(pairs): Mean.of([row["accuracy"][pairs] for row in runs]) for pairs in counts}


def accuracy(rows: Rows, mixer: str, pairs: int = 32, *, least: int = 1) -> float:
    """Return a mixer's mean accuracy in the main stage, or raise with fewer seeds than `least`."""
    runs = chosen(stages(rows)[0])[mixer]
    if len(runs) < least:
        raise LookupError(f"{mixer} must have {seeds(least)}, got {len(runs)}")
    return means(runs)[pairs].value


def _mean(rows: Rows, mixer: str) -> float:
    return accuracy(rows, mixer, least=Plan.seeds)


def _gain(rows: Rows, mixer: str) -> float:
    return _mean(rows, mixer) - _mean(rows, LINEAR)


def _kilobytes(rows: Rows, mixer: str) -> float:
    return float(chosen(stages(rows)[0])[mixer][0]["state_bytes"] / 1000)


_at = ", 32 pairs: accuracy"
TARGETS = (
    Target("SA, 4 pairs: accuracy", partial(accuracy, mixer="sa", pairs=4), at_least=0.95),
    Target(SMALL + _at, partial(_mean, mixer=SMALL), at_least=0.9),
    Target(f"{SMALL}: state", partial(_kilobytes, mixer=SMALL), at_most=28, unit=" kB"),
    Target(LARGE + _at, partial(_mean, mixer=LARGE), at_least=0.97),
    Target(f"{SMALL}{_at} minus LA", partial(_gain, mixer=SMALL), at_least=SMALLEST),
    Target(f"{LARGE}{_at} minus LA", partial(_gain, mixer=LARGE), at_least=SMALLEST),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield a table per stage: the accuracy of each mixer, its state, and what guessing gives."""
    main, *others = stages(rows)
    yield _table(main, _notes(main))
    for runs in others:
        if settings_of(runs[0], DEFAULTS)["updates"]:
            each = "Half of the keys come twice, half three times, each time with another value."
            yield _table(runs, [f"{each} {_choice(runs, UPDATE_LRS)}."])
            continue
        most = seeds(max(map(len, chosen(runs).values())))
        yield _table(runs, [f"At the learning rates selected with {_words(main)}; {most}."])


def _table(rows: Sequence[Row], notes: Sequence[str]) -> Table:
    found = {name: (runs[0], means(runs)) for name, runs in chosen(rows).items()}
    pairs = sorted(set().union(*(of for _, of in found.values())))
    body = []
    for name, (run, of) in found.items():
        cells = [of[p].text if p in of else "" for p in pairs]
        sizes = [f"{run[field]:,}" for field in ("state_bytes", "parameters")]
        body.append([name, *cells, f"{run['lr']:g}", *sizes])
    name, guess = guessing(rows)
    body.append([name, *(f"{guess(p):.3f}" for p in pairs), "", "", ""])
    head = ["mixer", *(f"{p} pairs" for p in pairs), "lr", "state, bytes", "parameters"]
    return Table(f"Share of queries answered correctly, {_words(rows)}", head, body, notes)


def guessing(rows: Sequence[Row]) -> tuple[str, Callable[[int], float]]:
    """Return the name and the accuracy, by number of pairs, of models that only guess."""
    if settings_of(rows[0], DEFAULTS)["updates"]:
        return GUESS_OF_KEY, lambda pairs: 1 / 2 - pairs // 2 / pairs / 6
    return GUESS, lambda pairs: 1 / pairs


def _words(rows: Sequence[Row]) -> str:
    run = settings_of(rows[0], DEFAULTS)
    what = "keys that change their value" if run["updates"] else "pairs"
    return f"{min(run['pairs'])} to {max(run['pairs'])} {what}, {run['steps']:,} steps"


def _notes(rows: Sequence[Row]) -> list[str]:
    run = settings_of(rows[0], DEFAULTS)
    models = (
        f"{run['layers']} blocks of {run['hidden']} channels with a short convolution; `sa`, `la`"
        f" and `deltanet` with {run['heads']} head{'s' * (run['heads'] > 1)}; 4 tokens per pair,"
        f" vocabulary of {run['vocab']}, {run['batch']} samples per step. The state is that after"
        " the longest sample. `ea-q25r12` has 25 nodes on ±12; without a radius in the name, nodes"
        " are 0.5 apart."
    )
    exact = any(row["mixer"] == EXACT for row in rows)
    limit = " A run of `ea` takes 1.5 hours: it has two learning rates and one seed."
    return [models, f"{_choice(rows, Plan.lrs)}.{limit * exact}"]


def _choice(rows: Sequence[Row], lrs: Sequence[float]) -> str:
    """Describe the choice of the learning rate, and the number of seeds."""
    tried, most = sorted({row["lr"] for row in rows}), max(map(len, chosen(rows).values()))
    inner, outer = (
        ", ".join(f"{lr:g}" for lr in tried if (lr in lrs) == planned) for planned in (True, False)
    )
    choice = f"Learning rate: the best of {inner} on validation with seed 0"
    if outer:
        choice += f", and of {outer} where the best of these is the smallest or the largest"
    return f"{choice}. {seeds(most)}" + ", mean ± standard deviation" * (most > 1)


def draw(rows: Sequence[Row]) -> Chart:
    """Draw the accuracy along the number of pairs, and against the bytes of the state."""
    main, *others = stages(rows)
    states: list[Point] = []
    for name, runs in chosen(main).items():
        of = means(runs)
        states.append({"series": name, "x": runs[0]["state_bytes"], "y": of[max(of)].value})
    most = max(max(means(runs)) for runs in chosen(main).values())
    title = f"(b) {most} pairs, by size of the state"
    panels = [
        _along("(a) By number of pairs", main),
        lines(title, states, x="bytes", y=SHARE, log="x", looks=ALL_LOOKS),
    ]
    for runs in others:
        if settings_of(runs[0], DEFAULTS)["updates"]:
            panels.append(_along("(c) Keys that change their value", runs))
    return Chart(panels)


def _along(title: str, rows: Sequence[Row]) -> Panel:
    """Draw the accuracy along the number of pairs."""
    points: list[Point] = []
    for name, runs in chosen(rows).items():
        of = means(runs)
        points += [{"series": name, "x": pairs, "y": mean.value} for pairs, mean in of.items()]
    name, guess = guessing(rows)
    places = sorted({point["x"] for point in points})
    points += [{"series": name, "x": pairs, "y": guess(pairs)} for pairs in places]
    return lines(title, points, x="pairs", y=SHARE, log="x", looks=ALL_LOOKS)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the numbers of pairs at which other mechanisms answer more queries than EA."""
    for runs in stages(rows):
        found = {name: means(of) for name, of in chosen(runs).items()}
        others = {name: of for name, of in found.items() if not name.startswith("ea")}
        for own in OURS:
            for pairs, mean in found.get(own, {}).items():
                better = [
                    f"`{name}` {of[pairs].value:.3f}"
                    for name, of in others.items()
                    if pairs in of and of[pairs].value > mean.value + SMALLEST
                ]
                if better:
                    where = f"{pairs} pairs, trained on {_words(runs)}"
                    yield f"{where}: {', '.join(better)}; `{own}` {mean.value:.3f}."
