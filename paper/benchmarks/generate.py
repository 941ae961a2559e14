"""Time per token and bytes of the cache along one long text of a language model.

BERT-base as a causal language model of transformers with random weights and a short convolution
writes one text by greedy `generate`, with its own cache. The first and the last tokens belong to
the same text, so only its length distinguishes them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from eattn.hf import EACache, EAForCausalLM
from eattn.nn import check_mixer
from paper.harness.bert import OURS, better_mixers, mixer_points
from paper.harness.causal_lm import LanguageModelPlan
from paper.harness.chart import Chart, lines
from paper.harness.measure import quantiles
from paper.harness.runlog import Row, RunLog, group, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Beyond the paper: one long text"
CHECKED = 32  # tokens that are generated without the cache, too
NEAR = 1e-4  # largest difference of logits with and without the cache


@dataclass(frozen=True)
class Plan(LanguageModelPlan):
    """Sizes of the text and of the model."""

    mixers: tuple[str, ...] = (OURS, "sa")
    tokens: int = 4096
    window: int = 256  # tokens of a row
    prompt: int = 16

    def start(self) -> Tensor:
        """Return the prompt, [1, prompt]."""
        rng = torch.Generator().manual_seed(0)
        return torch.randint(self.vocab, (1, self.prompt), generator=rng)

    def windows(self) -> list[Row]:
        """Return the first and the last token of every row."""
        firsts = range(1, self.tokens + 1, self.window)
        return [{"first": first, "last": first + self.window - 1} for first in firsts]


def plan(quick: bool) -> Plan:
    """Return the full plan, or the same model with a short text."""
    return Plan(tokens=512, window=64) if quick else Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """For every mixer, check the cache and then write a text; its rows belong together."""
    for name in plan.mixers:
        check_mixer(name)
    if plan.window < 2 or plan.tokens < 2 * plan.window or plan.tokens % plan.window:
        got = f"tokens = {plan.tokens}, window = {plan.window}"
        raise ValueError(f"tokens must be two or more windows of at least two tokens, got {got}")
    keys = [{"what": "tokens", "mixer": mixer} for mixer in plan.mixers]
    log.expect(key | plan.windows()[-1] for key in keys)
    for key in keys:
        checked = {"what": "correctness", "who": key["mixer"]}
        if not all(log.has(key | window) for window in plan.windows()):
            model = plan.model(key["mixer"])
            log.add(checked, check(plan, model))
            log.add(key, *text(plan, model))
        yield from log.find(checked)
        yield from log.find(key)


@torch.no_grad()
def check(plan: Plan, model: EAForCausalLM) -> Row:
    """Compare the logits of a few tokens with and without the cache; raise if they differ."""
    out = model.generate(
        plan.start(),
        do_sample=False,
        max_new_tokens=CHECKED,
        return_dict_in_generate=True,
        output_logits=True,
    )
    found = torch.stack(out.logits, 1)
    whole = model(out.sequences[:, :-1], use_cache=False).logits[:, plan.prompt - 1 :]
    error = float((found - whole).abs().max())
    if not error < NEAR:
        raise RuntimeError(f"logits differ by {error:.1e} with the cache, so nothing was timed")
    return {"error": error}


class Clock(BaseStreamer):
    """Record the time of every token, and the bytes of the cache after it."""

    def __init__(self, cache: EACache) -> None:
        self.cache = cache
        self.times: list[float] = []
        self.held: list[int] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())
        self.held.append(self.cache.nbytes)

    def end(self) -> None:
        """Do nothing: `generate` calls this after the last token."""


def text(plan: Plan, model: EAForCausalLM) -> Iterator[Row]:
    """Write a text and yield, per window, quantiles of the time of a token, and bytes held."""
    cache = EACache(plan.depth)
    clock = Clock(cache)
    options: dict[str, Any] = {"past_key_values": cache, "streamer": clock, "do_sample": False}
    model.generate(plan.start(), max_new_tokens=plan.tokens, **options)
    # The prompt comes first, and the first token is not timed: it includes the prompt.
    seconds = [later - earlier for earlier, later in pairwise(clock.times[1:])]
    for window in plan.windows():
        first, last = window["first"], window["last"]
        yield window | {
            **vars(quantiles(seconds[max(first - 2, 0) : last - 1])),
            "bytes_first": clock.held[first],
            "bytes_last": clock.held[last],
            "parameters": model.num_parameters(),
            "dtype": "float32",
            "threads": torch.get_num_threads(),
        }


def by_mixer(rows: Rows) -> dict[str, list[Row]]:
    """Return the windows of each mixer's text, in order."""
    return group(rows_of(rows, "tokens"), "mixer")


def _ratio(last: str, first: str, rows: Rows) -> float:
    """Return a field of the last window of EA-6 over a field of the first."""
    windows = by_mixer(rows)[OURS]  # KeyError, a LookupError, without EA-6
    return float(windows[-1][last] / windows[0][first])


_slowdown, _growth = partial(_ratio, "p50", "p50"), partial(_ratio, "bytes_last", "bytes_first")
TARGETS = (
    Target("EA-6: time per token, end / beginning", _slowdown, at_most=1.05, unit="×"),
    Target("EA-6: bytes held, last token / first token", _growth, at_most=1.0, unit="×"),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the first and the last window of every mixer."""
    found = by_mixer(rows)
    for first, *_, last in list(found.values())[:1]:
        times = [f"tokens {row['first']:,} to {row['last']:,}" for row in (first, last)]
        held = [f"held after token {count:,}" for count in (first["first"], last["last"])]
        body = []
        for mixer, (start, *_, end) in found.items():
            cells = [f"{1000 * row['p50']:.1f} ms" for row in (start, end)]
            cells.append(f"{end['p50'] / start['p50']:.2f}")
            for count in (start["bytes_first"], end["bytes_last"]):
                cells.append(f"{count / 2**20:,.2f} MiB")
            body.append([mixer, *cells])
        model = f"{first['parameters'] / 1e6:.0f} M parameters, {first['threads']} threads"
        note = f"{model}; the median time of a token, and the bytes of the cache."
        yield Table("Beginning and end of one text", ["mixer", *times, "×", *held], body, [note])


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw time per token and bytes held along the text."""
    found = rows_of(rows, "tokens")
    times = mixer_points(found, "last", "p50", unit=1e-3)
    held = mixer_points(found, "last", "bytes_last", unit=2**20)
    panels = [
        lines("(a) Time per token", times, x="token", y="ms"),
        lines("(b) Size of the cache", held, x="token", y="MiB"),
    ]
    return Chart(panels) if found else None


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the windows in which another mixer takes less time, or holds fewer bytes, than EA-6."""
    windows = [row | {"token": row["last"]} for row in rows_of(rows, "tokens")]
    yield from better_mixers(windows, "p50", "takes less time", "token")
    yield from better_mixers(windows, "bytes_last", "holds fewer bytes", "token")
