"""Beyond the paper: associative recall.

How many pairs of key and value can a mixer keep apart? The task is multi-query associative recall
(MQAR) as in Zoology (Arora et al., 2023): pairs of key and value, then each key once more, and the
model must predict its value. Small states are known to be weak here: a few numbers per channel
cannot hold many pairs. The models have two layers with a short convolution, which tells a value its
key, and differ only in the mixer. They train on all numbers of pairs at once and never see a sample
twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from eattn.hf import EAConfig, EAForCausalLM
from eattn.nn import check_mixer
from eattn.train import Task, TrainConfig, isolated, train
from paper.harness.chart import DOTTED, GREY, LOOKS, Chart, Look, lines
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog, group
from paper.harness.scores import seeds
from paper.harness.settings import by_variant, defaults, key_of, settings_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Associative recall"
OURS = "ea-6"
GUESS = "any value of the sample"  # models learn this first
VALIDATION, TEST = 1, 2  # streams of random numbers; training uses stream 0
EVALUATED = 64  # samples per batch of the evaluation
EARLY = 0.01  # exponent of the distribution of the queries' positions: most come early
NO_LABEL = -100
SMALLEST = 0.01  # smaller differences in accuracy are chance


@dataclass(frozen=True)
class Plan:
    """Every mixer with every learning rate and seed; a sample of p pairs has 4 p tokens."""

    mixers: tuple[str, ...] = ("ea-2", "ea-6", "ea", "la", "sa")
    lrs: tuple[float, ...] = (1e-3, 3e-3)  # the best one on validation counts
    seeds: int = 1
    pairs: tuple[int, ...] = (4, 8, 16, 32)
    hidden: int = 64
    layers: int = 2
    heads: int = 1  # of sa and la; one, as in Zoology, holds the most pairs
    vocab: int = 512
    batch: int = 64
    steps: int = 1500
    judged: int = 512  # samples of each number of pairs
    jobs: int | None = None  # runs side by side; one per core by default

    def runs(self) -> Iterator[Key]:
        """Yield the settings of every training run, which are the key of its row."""
        changed = key_of(self, DEFAULTS)
        for seed, mixer, lr in product(range(self.seeds), self.mixers, self.lrs):
            yield {"what": "run", "mixer": mixer, "lr": lr, "seed": seed} | changed


DEFAULTS = defaults(Plan, after="seeds")


def plan(quick: bool) -> Plan:
    """Return the full plan, or one with hardly enough steps to learn the task."""
    return Plan(pairs=(4, 8, 16), lrs=(3e-3,), steps=300, judged=128) if quick else Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Train every model of the plan, several side by side."""
    for mixer in plan.mixers:
        check_mixer(mixer)
    return run_all(log, plan.runs(), measure_run, jobs=plan.jobs)


# ---- samples -------------------------------------------------------------------------------------


def recall(
    samples: int, *, pairs: int, vocab: int, rng: np.random.Generator, length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Draw samples of the task: tokens [samples, length], and labels of the same shape.

    A label is the value to predict after a token, or NO_LABEL. Keys come from the lower half of the
    vocabulary and values from the upper half; no key occurs twice in a sample. After the pairs each
    key comes once more, early rather than late, between random tokens. The length is even and at
    least 4 pairs, which is the default.
    """
    length = 4 * pairs if length is None else length
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, got {pairs}")
    if length < 4 * pairs or length % 2:
        raise ValueError(f"length must be even and at least 4 pairs = {4 * pairs}, got {length}")
    half, context = vocab // 2, 2 * pairs
    if half - 1 < pairs:
        raise ValueError(f"vocab must be at least {2 * pairs + 2} for {pairs} pairs, got {vocab}")
    keys = 1 + _choose(rng, samples, half - 1, pairs)
    values = half + _choose(rng, samples, vocab - half, pairs)
    tokens = np.zeros((samples, length), np.int64)
    tokens[:, 0:context:2], tokens[:, 1:context:2] = keys, values
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
        first, every, vocab = indices[0], self.settings["pairs"], self.settings["vocab"]
        pairs = every[first % len(every)]
        rng = np.random.default_rng([self.settings["seed"], 0, first])
        return recall(len(indices), pairs=pairs, vocab=vocab, rng=rng)


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
        tokens, labels = recall(settings["judged"], pairs=pairs, vocab=settings["vocab"], rng=rng)
        answers = torch.cat([model(part).logits.argmax(-1) for part in tokens.split(EVALUATED)])
        asked = labels != NO_LABEL
        found[str(pairs)] = float((answers == labels)[asked].double().mean())
    return found


@torch.no_grad()
def state_bytes(model: EAForCausalLM, settings: Row) -> int:
    """Return the size of the cache after the longest sample."""
    rng = np.random.default_rng(0)
    tokens, _ = recall(1, pairs=max(settings["pairs"]), vocab=settings["vocab"], rng=rng)
    return int(model(tokens, use_cache=True).past_key_values.nbytes)


def chosen(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the runs of each mixer with its best learning rate on validation, one per seed."""
    found = {}
    for name, runs in by_variant(rows, lambda row: row["mixer"], DEFAULTS).items():
        found[name] = max(
            group(runs, "lr").values(), key=lambda of: fmean(row["validation"] for row in of)
        )
    return found


def mean_accuracy(runs: Sequence[Row]) -> dict[int, float]:
    """Return the mean accuracy over seeds, by number of pairs."""
    counts = runs[0]["accuracy"]
    return {int(pairs): fmean(row["accuracy"][pairs] for row in runs) for pairs in counts}


def _softmax(rows: Rows) -> float:
    """Return SA's accuracy with the fewest pairs: it must be able to learn the task."""
    found = mean_accuracy(chosen(rows)["sa"])
    return found[min(found)]


TARGETS = (Target("SA, fewest pairs: accuracy", _softmax, at_least=0.95),)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the accuracy of each mixer, its state, and what guessing gives."""
    found = chosen(rows)
    means = {name: mean_accuracy(runs) for name, runs in found.items()}
    pairs = sorted(set().union(*means.values()))
    body = []
    for name, runs in found.items():
        cells = [f"{means[name][p]:.3f}" if p in means[name] else "" for p in pairs]
        sizes = [f"{runs[0][field]:,}" for field in ("state_bytes", "parameters")]
        body.append([name, *cells, f"{runs[0]['lr']:g}", *sizes])
    body.append([GUESS, *(f"{1 / p:.3f}" for p in pairs), "", "", ""])
    head = ["mixer", *(f"{p} pairs" for p in pairs), "lr", "state, bytes", "parameters"]
    yield Table("Share of queries answered correctly", head, body, [_note(rows, found)])


def _note(rows: Sequence[Row], found: dict[str, list[Row]]) -> str:
    run = settings_of(rows[0], DEFAULTS)
    most, lrs = max(map(len, found.values())), len(group(rows, "lr"))
    return (
        f"{run['layers']} blocks of {run['hidden']} channels with a short convolution; `sa` and"
        f" `la` with {run['heads']} head{'s' * (run['heads'] > 1)}; 4 tokens per pair from a"
        f" vocabulary of {run['vocab']}; {run['steps']:,} steps of {run['batch']} samples; the best"
        f" of {lrs} learning rate{'s' * (lrs > 1)} on validation; {seeds(most)}."
        " The state is that after the longest sample."
    )


def draw(rows: Sequence[Row]) -> Chart:
    """Draw the accuracy along the number of pairs."""
    looks, points = {GUESS: Look(GREY, DOTTED)}, []
    places: set[int] = set()
    for name, runs in chosen(rows).items():
        looks[name] = LOOKS.get(runs[0]["mixer"], Look(GREY))
        for pairs, value in mean_accuracy(runs).items():
            points.append({"series": name, "x": pairs, "y": value})
            places.add(pairs)
    points += [{"series": GUESS, "x": pairs, "y": 1 / pairs} for pairs in sorted(places)]
    x, y = "pairs of key and value", "share of correct answers"
    title = "Accuracy of associative recall"
    return Chart([lines(title, points, x=x, y=y, log="x", looks=looks, columns=6)])


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the numbers of pairs at which another mixer answers more queries than EA-6."""
    found = {name: mean_accuracy(runs) for name, runs in chosen(rows).items()}
    own = found.pop(OURS, {})
    for name, means in found.items():
        for pairs, accuracy in means.items():
            if accuracy > own.get(pairs, 1.0) + SMALLEST:
                yield f"{pairs} pairs: `{name}` {accuracy:.3f}, EA-6 {own[pairs]:.3f}."
