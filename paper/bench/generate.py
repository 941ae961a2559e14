"""`eattn bench generate`: one long text, timed token by token, and what is kept of it.

BERT-base as a language model with random weights: what a token costs does not depend on what it
says. The loop is that of transformers, the cache the model's own. Beginning and end are of the same
text, so that nothing but its length can tell them apart.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from eattn.hf import EACache, EAConfig, EAForCausalLM
from eattn.nn import check_mixer
from paper.bench import bert, show
from paper.bench.experiment import carry_out
from paper.bench.measure import Row, quantiles
from paper.bench.progress import Tick
from paper.bench.runlog import Journal
from paper.bench.target import Promise, Rows, find
from paper.report import generate as report

TOKEN = 0.06  # seconds on two cores, roughly
CHECKED = 32  # tokens that are generated without the cache, too
NEAR = 1e-4  # logits with the cache and without it
OURS = "ea-6"


@dataclass(frozen=True)
class Plan:
    """What to measure. A smaller `dim`, `depth` or `vocab` is for tests: those here are BERT's."""

    mixers: tuple[str, ...] = (OURS, "sa")
    tokens: int = 4096
    window: int = 256  # tokens whose times are one row
    prompt: int = 16
    dim: int = bert.DIM
    depth: int = bert.DEPTH
    heads: int = bert.BASE.heads
    vocab: int = 30522

    def __post_init__(self) -> None:
        for name in self.mixers:
            check_mixer(name)
        if self.window < 2:
            raise ValueError(f"window must be at least 2, got {self.window}")
        if self.tokens < 2 * self.window or self.tokens % self.window:
            raise ValueError(
                f"tokens must be a multiple of {self.window}, and two of it at least,"
                f" got {self.tokens}"
            )

    @classmethod
    def quick(cls) -> "Plan":
        """The same model, and a text too short to tell much."""
        return cls(tokens=512, window=64)

    def model(self, mixer: str) -> EAForCausalLM:
        """The same weights each time, but for what mixers do not share."""
        torch.manual_seed(0)
        config = EAConfig(
            vocab_size=self.vocab,
            hidden_size=self.dim,
            num_hidden_layers=self.depth,
            num_attention_heads=self.heads,
            mixer=mixer,
        )
        return EAForCausalLM(config).eval()

    def begin(self) -> Tensor:
        """The prompt, [1, prompt]."""
        rng = torch.Generator().manual_seed(0)
        return torch.randint(self.vocab, (1, self.prompt), generator=rng)

    def costs(self) -> Iterator[tuple[Row, float]]:
        """Every group of rows, and about how many seconds it takes."""
        for mixer in self.mixers:
            yield _key(mixer), TOKEN * self.tokens


def _key(mixer: str) -> Row:
    return {"what": "tokens", "mixer": mixer}


# ---- rows ----------------------------------------------------------------------------------------


def run(plan: Plan, console: Console, json: Path | None = None) -> list[Row]:
    """Check, measure, print; rows go to the file as they come, and a cut-off run continues."""
    rows = carry_out(
        json,
        "generate",
        asdict(plan),
        console,
        costs=plan.costs(),
        measure=partial(measure, plan),
        promises=PROMISES,
        first="correctness",
    )
    print_rows(plan, rows, console)
    return rows


def measure(plan: Plan, journal: Journal, tick: Tick) -> None:
    """For every mixer the check, then the rows of its text, which belong together."""
    for mixer in plan.mixers:
        if not journal.has(_key(mixer)):
            model = plan.model(mixer)
            journal.row({"what": "correctness", "who": mixer}, partial(check, plan, model))
            journal.group(_key(mixer), partial(text, plan, model, tick))


@torch.no_grad()
def check(plan: Plan, model: EAForCausalLM) -> Row:
    """The logits of a few tokens with the cache and without; raises when they disagree."""
    prompt, options = plan.begin(), dict(do_sample=False, max_new_tokens=CHECKED)
    out = model.generate(prompt, return_dict_in_generate=True, output_logits=True, **options)
    found = torch.stack(out.logits, 1)
    whole = model(out.sequences[:, :-1], use_cache=False).logits[:, plan.prompt - 1 :]
    error = float((found - whole).abs().max())
    if not error < NEAR:
        raise RuntimeError(f"logits differ by {error:.1e} with the cache, so nothing was timed")
    return {"error": error}


class Clock(BaseStreamer):
    """Hears of every token when it is there: the time, and the bytes of the cache."""

    def __init__(self, cache: EACache, plan: Plan, tick: Tick) -> None:
        self.cache, self.plan, self.tick = cache, plan, tick
        self.times: list[float] = []
        self.held: list[int] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())
        self.held.append(self.cache.nbytes)
        count = len(self.times) - 1  # the prompt comes first
        if count and count % self.plan.window == 0:
            self.tick(f"token {count}", TOKEN * self.plan.window)

    def end(self) -> None:
        """Nothing is left to say."""


def text(plan: Plan, model: EAForCausalLM, tick: Tick) -> Iterator[Row]:
    """A row for each window of tokens: quantiles of the seconds of one, and bytes at both ends."""
    cache = EACache(plan.depth)
    clock = Clock(cache, plan, tick)
    model.generate(
        plan.begin(),
        past_key_values=cache,
        max_new_tokens=plan.tokens,
        do_sample=False,
        streamer=clock,
    )
    # The first token comes with the reading of the prompt, and has no time of its own.
    seconds = [later - sooner for sooner, later in pairwise(clock.times[1:])]
    for first in range(1, plan.tokens + 1, plan.window):
        last = first + plan.window - 1
        yield {
            "first": first,
            "last": last,
            **vars(quantiles(seconds[max(first - 2, 0) : last - 1])),
            "bytes_first": clock.held[first],
            "bytes_last": clock.held[last],
            "parameters": model.num_parameters(),
            "dtype": "float32",
            "threads": torch.get_num_threads(),
        }


# ---- what is promised, and the table -------------------------------------------------------------


def _ends(rows: Rows) -> tuple[Row, Row]:
    """The first window of EA-6 and its last."""
    find(rows, what="tokens", mixer=OURS)  # or there is nothing to promise
    of = [row for row in rows if row["what"] == "tokens" and row["mixer"] == OURS]
    return of[0], of[-1]


def _slower(rows: Rows) -> float:
    first, last = _ends(rows)
    return float(last["p50"] / first["p50"])


def _larger(rows: Rows) -> float:
    first, last = _ends(rows)
    return float(last["bytes_last"] / first["bytes_first"])


PROMISES = (
    Promise("EA-6: time per token, end / beginning", _slower, 1.05),
    Promise("EA-6: bytes kept, after the last token / after the first", _larger, 1.0),
)


def print_rows(plan: Plan, rows: Sequence[Row], console: Console) -> None:
    """The promises, the table, and where it was measured."""
    error = max(row["error"] for row in rows if row["what"] == "correctness")
    console.print(f"logits with the cache are those without, to {error:.1e}")
    if any(row["what"] == "ratio" for row in rows):
        whole = Plan(mixers=plan.mixers)
        console.print(show.promises(rows, at_contract=plan == whole))
    head, lines = report.table(rows)
    out = show.table(f"one text of {plan.tokens} tokens", *head[1:])
    for cells in lines:
        out.add_row(*cells)
    console.print(out)
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
