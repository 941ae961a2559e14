"""`eattn reproduce recall`: how many pairs of key and value can a mixer keep apart? (MQAR)

Not in the paper. Associative recall is where small states are known to be weak (Arora et al., 2023,
"Zoology"): a query must find the value of its key among many, and sums of a few numbers a channel
cannot hold them all. Two-layer models, only the mixer differing, with a short convolution, which
lets a value know its key; trained on all numbers of pairs at once, on cases that never come again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from eattn.hf import EAConfig, EAForCausalLM
from eattn.nn import check_mixer
from eattn.train import Task, TrainConfig, isolated, train
from paper.bench import show
from paper.bench.experiment import carry_out
from paper.bench.measure import Row
from paper.bench.target import Promise, Rows
from paper.report import recall as report
from paper.report.plots import need_matplotlib
from paper.reproduce.pool import run_all
from paper.reproduce.recall_data import NO_LABEL, recall

EXACT = "ea"
VALIDATION, TEST = 1, 2  # streams of random numbers beside that of training, 0
AT_ONCE = 64  # cases that are judged side by side


@dataclass(frozen=True)
class Plan:
    """What to train and to ask; a case of p pairs has 4 p tokens."""

    mixers: tuple[str, ...] = ("ea-2", "ea-6", EXACT, "la", "sa")
    pairs: tuple[int, ...] = (4, 8, 16, 32)
    lrs: tuple[float, ...] = (1e-3, 3e-3)  # the better one by validation counts
    seeds: int = 1
    hidden: int = 64
    layers: int = 2
    heads: int = 1  # of sa and la, as in Zoology: smaller ones keep fewer pairs apart
    vocab: int = 512
    batch: int = 64
    steps: int = 1500
    judged: int = 512  # cases of each number of pairs
    cost: float = 180.0  # seconds of a run on one core, roughly

    def __post_init__(self) -> None:
        for mixer in self.mixers:
            check_mixer(mixer)

    @classmethod
    def quick(cls) -> "Plan":
        """Fewer pairs, one learning rate, few steps: hardly enough to learn it."""
        return cls(pairs=(4, 8, 16), lrs=(3e-3,), steps=300, judged=128, cost=30.0)

    def work(self) -> Iterator[tuple[Row, float]]:
        """Every run, and about how many seconds it takes."""
        for seed in range(self.seeds):
            for mixer in self.mixers:
                for lr in self.lrs:
                    dear = 3 if mixer == EXACT else 1  # it is quadratic
                    key = {"what": "run", "mixer": mixer, "lr": lr, "seed": seed}
                    yield key, self.cost * dear


def run(
    plan: Plan, console: Console, out: Path, *, name: str = "recall", jobs: int | None = None
) -> list[Path]:
    """Rows to out/name.jsonl as runs end, and a picture of them."""
    need_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    path, work = out / f"{name}.jsonl", list(plan.work())
    measure = partial(measure_run, plan=plan)
    rows = carry_out(
        path,
        "recall",
        asdict(plan),
        console,
        costs=work,
        measure=lambda journal, tick: run_all(journal, work, measure, tick, jobs=jobs),
        promises=PROMISES,
    )
    print_rows(rows, console)
    return [path, *report.redraw(path)]


# ---- one run -------------------------------------------------------------------------------------


class Draws:
    """Cases by number, drawn when they are asked for; those of a batch have as many pairs."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.seed = plan, seed

    def __len__(self) -> int:
        return self.plan.batch * self.plan.steps

    def collate(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        first, pairs = indices[0], self.plan.pairs
        rng = np.random.default_rng([self.seed, 0, first])
        return draw(self.plan, pairs[first % len(pairs)], len(indices), rng)


def draw(plan: Plan, pairs: int, cases: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Tokens and labels [cases, 4 pairs]."""
    made = recall(cases, pairs=pairs, length=4 * pairs, vocab=plan.vocab, rng=rng)
    return torch.from_numpy(made.tokens), torch.from_numpy(made.labels)


def measure_run(key: Row, *, plan: Plan) -> Row:
    """Accuracy for each number of pairs after one training."""
    seed = key["seed"]
    with isolated(seed):
        model = EAForCausalLM(
            EAConfig(
                vocab_size=plan.vocab,
                hidden_size=plan.hidden,
                num_hidden_layers=plan.layers,
                num_attention_heads=plan.heads,
                mixer=key["mixer"],
            )
        )
    config = TrainConfig(
        epochs=1,
        batch_size=plan.batch,
        lr=key["lr"],
        schedule="cosine",
        warmup=0.1,
        weight_decay=0.1,
        keep="last",
        seed=seed,
    )
    history = train(model, Task(Draws(plan, seed), loss), config)
    validation = accuracies(model, plan, VALIDATION)
    return {
        "accuracy": accuracies(model, plan, TEST),
        "validation": float(np.mean(list(validation.values()))),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": history.seconds,
        "state_bytes": state_bytes(model, plan),
    }


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    tokens, labels = batch
    return F.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())


@torch.no_grad()
def accuracies(model: nn.Module, plan: Plan, stream: int) -> dict[str, float]:
    """The share of queries answered right, by the number of pairs; the same cases for all."""
    found = {}
    for pairs in plan.pairs:
        tokens, labels = draw(plan, pairs, plan.judged, np.random.default_rng([stream, pairs]))
        answers = torch.cat([model(part).logits.argmax(-1) for part in tokens.split(AT_ONCE)])
        asked = labels != NO_LABEL
        found[str(pairs)] = float((answers == labels)[asked].double().mean())
    return found


@torch.no_grad()
def state_bytes(model: EAForCausalLM, plan: Plan) -> int:
    """What the model keeps of the longest case."""
    tokens, _ = draw(plan, max(plan.pairs), 1, np.random.default_rng(0))
    held: int = model(tokens, use_cache=True).past_key_values.nbytes
    return held


# ---- that the task can be learnt, and the table --------------------------------------------------


def _softmax(rows: Rows) -> float:
    """SA's accuracy with the fewest pairs: it must be able to do it."""
    chosen = report.chosen(rows)
    if "sa" not in chosen:
        raise LookupError("no run of sa")
    of: Any = report.accuracies(chosen["sa"])
    return float(of[min(of)])


PROMISES = (Promise("SA, fewest pairs: accuracy", _softmax, 0.95, at_most=False, unit=""),)


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """The table, whether the task was learnt at all, and where it was measured."""
    head, lines = report.table(rows)
    out = show.table("accuracy of recall, by the number of pairs", *head)
    for cells in lines:
        out.add_row(*cells)
    console.print(out)
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows))
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
