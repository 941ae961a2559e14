"""Drafts, edits and snapshots: a language model whose state goes back.

BERT-base as a causal language model of transformers with random weights and a short convolution. A
logits processor forces a given text, by raising the logit of its next token, so the share of
accepted drafts is that of the text and does not depend on training. Texts are split into words,
numbers, spaces and signs. The model rewrites a file of Python's standard library in which one
variable is renamed, after reading the original; and it writes a page of Python's documentation
after the page's first part. Plain greedy decoding and prompt lookup take turns and continue from a
snapshot of the same prompt.

For edits, one token of a long prompt of random tokens changes. The first token after the edited
prompt is generated from the last snapshot before the edit (`PrefixCache`), by reading the prompt
again, and by softmax attention, which keeps the keys and values before the edit and reads the rest.
Softmax attention has no convolution here, as keys and values do not contain its inputs, and reads
1,024 tokens at a time, as SDPA also computes the pairs that a mask excludes.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from eattn.hf import EACache, EAForCausalLM, PrefixCache
from eattn.nn.decoding_state import KVCache
from paper.harness.bert import OURS
from paper.harness.causal_lm import LanguageModelPlan
from paper.harness.chart import BLUE, DASHED, LOOKS, SKY, Chart, Look, lines
from paper.harness.measure import Candidate, Row, timed_rows
from paper.harness.runlog import RunLog, find_row, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Beyond the paper: drafts, edits and snapshots"
TEXTS = ("code", "prose")
FILE, OLD, NEW = "graphlib", "node", "vertex"
PAGE = "naming"
WORD = re.compile(r" ?[A-Za-z]+| ?\d+|\s+| ?[^\sA-Za-z\d]")
EDITS = (0.1, 0.5, 0.9)
CHECKED = 32  # tokens that are written with drafts and read without a cache, too
NEAR = 1e-4  # largest difference of logits
CHUNK = 1024  # tokens that softmax attention reads at a time
WAYS = ("prefix", "again", "sa")
NAMES = {"prefix": "`PrefixCache`", "again": "reading again", "sa": "`sa`, keys and values kept"}
SERIES = {  # names and looks in the chart
    "prefix": ("EA-6, PrefixCache", Look(BLUE)),
    "again": ("EA-6, reading again", Look(SKY, DASHED)),
    "sa": ("SA, keys and values kept", LOOKS["sa"]),
}


@dataclass(frozen=True)
class Plan(LanguageModelPlan):
    """Sizes of the texts and of the model."""

    tokens: int = 512  # written after the prompt
    prompt: int = 512  # tokens of the page before the text
    drafts: int = 10  # prompt_lookup_num_tokens
    rounds: int = 5
    length: int = 16384  # tokens of the edited prompt
    every: int = 512  # tokens between snapshots
    edit_rounds: int = 3

    def text(self, name: str) -> tuple[Tensor, Tensor]:
        """Return a prompt [1, L] and the text that follows it, [1, tokens]."""
        if name == "code":
            source = inspect.getsource(import_module(FILE))
            first, second = self._tokens(source, re.sub(rf"\b{OLD}\b", NEW, source))
        else:
            (page,) = self._tokens(topics[PAGE])
            first, second = page[:, : self.prompt], page[:, self.prompt :]
        if second.shape[1] < self.tokens:
            raise ValueError(f"{name} has {second.shape[1]} tokens, fewer than {self.tokens}")
        return first, second[:, : self.tokens]

    def _tokens(self, *texts: str) -> list[Tensor]:
        """Return texts as tokens [1, L] of a common vocabulary."""
        known: dict[str, int] = {}
        parts = [[known.setdefault(w, len(known)) for w in WORD.findall(text)] for text in texts]
        return [torch.tensor([part]) % self.vocab for part in parts]

    def long(self) -> Tensor:
        """Return a prompt of random tokens, [1, length]."""
        rng = torch.Generator().manual_seed(0)
        return torch.randint(self.vocab, (1, self.length), generator=rng)

    def edited(self, share: float) -> tuple[Tensor, int]:
        """Return the long prompt with one changed token, and the position of this token."""
        tokens, at = self.long(), int(share * self.length)
        tokens[0, at] = (tokens[0, at] + 1) % self.vocab
        return tokens, at


def plan(quick: bool) -> Plan:
    """Return the full plan, or the same model with short texts."""
    small = Plan(tokens=64, rounds=2, length=1024, every=64, edit_rounds=1)
    return small if quick else Plan()


class Force(LogitsProcessor):
    """Make a text the most likely one: `start` tokens of a prompt precede it."""

    def __init__(self, text: Tensor, start: int) -> None:
        self.text, self.start = text[0], start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # Other tokens stay possible: prompt lookup does not draft tokens of probability 0.
        position = input_ids.shape[1] - self.start
        if position < len(self.text):
            scores[:, self.text[position]] = scores.max() + 1
        return scores


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Check the logits, then time texts and edits, and count bytes."""
    if plan.length < 10 or plan.rounds < 1 or plan.edit_rounds < 1:
        got = f"length = {plan.length}, rounds = {plan.rounds}, edit_rounds = {plan.edit_rounds}"
        raise ValueError(f"length must be at least 10 and rounds at least 1, got {got}")
    sizes = {"dim": plan.dim, "depth": plan.depth}
    work: list[tuple[Row, Any]] = [
        ({"what": "text", "text": name, "tokens": plan.tokens} | sizes, partial(write, plan, name))
        for name in TEXTS
    ]
    long = {"length": plan.length} | sizes
    work.append(({"what": "edit"} | long, partial(edit, plan)))
    checked = {"what": "correctness"} | sizes
    yield from log.measure_all(work, (checked, partial(check, plan)))


@torch.no_grad()
def check(plan: Plan) -> Row:
    """Compare logits after drafts with those without a cache; raise if they differ."""
    model, error = plan.model(OURS), 0.0
    for name in TEXTS:
        prompt, text = plan.text(name)
        prompt, text = prompt[:, -CHECKED:], text[:, :CHECKED]
        out = _generate(
            model,
            prompt,
            text,
            prompt_lookup_num_tokens=plan.drafts,
            return_dict_in_generate=True,
            output_logits=True,
        )
        whole = model(out.sequences[:, :-1], use_cache=False).logits[:, prompt.shape[1] - 1 :]
        error = max(error, float((torch.stack(out.logits, 1) - whole).abs().max()))
        if not torch.equal(out.sequences[:, prompt.shape[1] :], text):
            raise RuntimeError(f"{name} was not written as forced, so nothing was timed")
    if not error < NEAR:
        raise RuntimeError(f"logits differ by {error:.1e} with drafts, so nothing was timed")
    return {"error": error}


def write(plan: Plan, name: str) -> Iterator[Row]:
    """Write a text with and without drafts, in turn; yield the time per token."""
    model = plan.model(OURS)
    prompt, text = plan.text(name)
    cache, count = EACache(plan.depth), text.shape[1]
    with torch.no_grad():
        model.model(prompt[:, :-1], past_key_values=cache)
    snapshot = cache.snapshot()
    work: list[tuple[Row, Candidate]] = []
    for way, options in (("plain", {}), ("lookup", {"prompt_lookup_num_tokens": plan.drafts})):
        # A new cache for each run, as prompt lookup gives a cache a rollback.
        current: list[EACache] = []
        run = partial(_continue, model, prompt, text, current, options)
        prepare = partial(_replace, current, snapshot)
        calls = _calls(model, run, prepare)
        row = {"way": way, "calls": calls, "bytes": current[0].nbytes, "prompt": prompt.shape[1]}
        work.append((row, Candidate(run, calls=count, prepare=prepare, warmup=0)))
    for row in timed_rows(work, rounds=plan.rounds):
        yield row | {"drafts": plan.drafts, "threads": torch.get_num_threads()}


def _generate(model: EAForCausalLM, prompt: Tensor, text: Tensor, **options: Any) -> Any:
    force = LogitsProcessorList([Force(text, prompt.shape[1])])
    count = text.shape[1]
    return model.generate(
        prompt, max_new_tokens=count, do_sample=False, logits_processor=force, **options
    )


def _continue(
    model: EAForCausalLM,
    prompt: Tensor,
    text: Tensor,
    current: list[EACache],
    options: dict[str, Any],
) -> Tensor:
    made: Tensor = _generate(model, prompt, text, past_key_values=current[0], **options)
    return made


def _replace(current: list[EACache], snapshot: EACache) -> None:
    current[:] = [snapshot.snapshot()]


def _calls(model: EAForCausalLM, run: Any, prepare: Any) -> int:
    """Return how often the model is called in one run."""
    calls: list[int] = []
    hook = model.model.register_forward_pre_hook(lambda *_: calls.append(1))
    prepare()
    run()
    hook.remove()
    return len(calls)


@torch.no_grad()
def edit(plan: Plan) -> Iterator[Row]:
    """Yield the time to the first token after edits, by way, and the bytes of a session."""
    ours, theirs = plan.model(OURS), plan.model("sa", short_conv=None)
    prefix = PrefixCache(ours, every=plan.every, max_bytes=2**40)
    small = PrefixCache(ours, every=plan.every, max_bytes=2**40, int8=True)
    tokens = plan.long()
    cache, _ = prefix.lookup(tokens)
    _first(ours, tokens, cache)
    for each in (prefix, small):
        each.store(tokens, cache)
    kept = EACache(plan.depth)
    _first(theirs, tokens, kept)
    common: Row = {"threads": torch.get_num_threads(), "every": plan.every}
    common |= {"state": cache.snapshot().nbytes, "keys": kept.nbytes}
    common |= {"snapshots": prefix.nbytes, "int8": small.nbytes, "count": len(prefix)}
    common["int8_error"] = _int8_error(ours, tokens, prefix, small)
    work: list[tuple[Row, Candidate]] = []
    for share in EDITS:
        changed, at = plan.edited(share)
        error = _edit_error(ours, changed, prefix)
        current: list[EACache] = []
        once: Any = dict(warmup=0)
        runs = {
            "prefix": Candidate(partial(_from_prefix, ours, changed, prefix), **once),
            "again": Candidate(partial(_first, ours, changed, None), **once),
            "sa": Candidate(
                partial(_from_kept, theirs, changed, current),
                prepare=partial(_truncate, current, kept, at),
                **once,
            ),
        }
        read = {"prefix": plan.length - prefix.lookup(changed)[1], "again": plan.length}
        read["sa"] = plan.length - at
        for way, run in runs.items():
            row = {"edit": share, "way": way, "read": read[way]}
            work.append((row | ({"error": error} if way == "prefix" else {}) | common, run))
    yield from timed_rows(work, rounds=plan.edit_rounds)


def _first(model: EAForCausalLM, tokens: Tensor, cache: EACache | None) -> Tensor:
    """Generate the first token after a prompt."""
    options: dict[str, Any] = {"past_key_values": cache, "do_sample": False}
    if model.config.mixer == "sa":
        options["prefill_chunk_size"] = CHUNK
    made: Tensor = model.generate(tokens, max_new_tokens=1, **options)
    return made


def _from_prefix(model: EAForCausalLM, tokens: Tensor, prefix: PrefixCache) -> Tensor:
    return _first(model, tokens, prefix.lookup(tokens)[0])


def _from_kept(model: EAForCausalLM, tokens: Tensor, current: list[EACache]) -> Tensor:
    return _first(model, tokens, current[0])


def _truncate(current: list[EACache], kept: EACache, tokens: int) -> None:
    """Make a cache that has read the first tokens, in memory with room for the others."""
    cache = EACache(len(kept.layers))
    states: list[Any] = [layer.state for layer in kept.layers]
    cache.load([_shortened(state, tokens) for state in states], tokens)
    current[:] = [cache]


def _shortened(state: KVCache, tokens: int) -> KVCache:
    keys, values = state.keys.clone(), state.values.clone()
    return replace(state, keys=keys, values=values, length=tokens, written=[tokens])


def _edit_error(model: EAForCausalLM, tokens: Tensor, prefix: PrefixCache) -> float:
    """Compare the logits of the first token with those without snapshots; raise if they differ."""
    cache, n = prefix.lookup(tokens)
    found = model(tokens[:, n:], past_key_values=cache, logits_to_keep=1).logits
    error = float((found - model(tokens, use_cache=False, logits_to_keep=1).logits).abs().max())
    if not error < NEAR:
        raise RuntimeError(f"logits differ by {error:.1e} with snapshots, so nothing was timed")
    return error


def _int8_error(
    model: EAForCausalLM, tokens: Tensor, exact: PrefixCache, small: PrefixCache
) -> float:
    """Return the RMS difference of logits after a snapshot of 8 bits, relative to their spread."""
    later = torch.cat([tokens, tokens[:, :CHECKED]], 1)
    found = []
    for prefix in (exact, small):
        cache, n = prefix.lookup(later)
        found.append(model(later[:, n:], past_key_values=cache).logits)
    want, rounded = found
    return float((rounded - want).square().mean().sqrt() / want.std())


def _speedup(rows: Rows, text: str) -> float:
    """Return the time per token of plain decoding over that with prompt lookup."""
    plain, lookup = (find_row(rows, what="text", text=text, way=w) for w in ("plain", "lookup"))
    return float(plain["p50"] / lookup["p50"])


def _edit_ratio(rows: Rows) -> float:
    """Return the time to the first token after an edit at 90 %, over that of reading again."""
    ours, again = (find_row(rows, what="edit", edit=0.9, way=way) for way in ("prefix", "again"))
    return float(ours["p50"] / again["p50"])


TARGETS = (
    Target(
        "Python file with a rename: plain / lookup",
        partial(_speedup, text="code"),
        at_least=1.5,
        unit="×",
    ),
    Target("prose: plain / lookup", partial(_speedup, text="prose"), at_least=0.95, unit="×"),
    Target("edit at 90 %: snapshots / reading again", _edit_ratio, at_most=0.2, unit="×"),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the texts, the edits, and the bytes of a session."""
    found = rows_of(rows, "text")
    if found:
        body = []
        for text in TEXTS:
            plain, lookup = (find_row(found, text=text, way=way) for way in ("plain", "lookup"))
            times = [f"{1000 * row['p50']:.1f} ms" for row in (plain, lookup)]
            share = f"{lookup['tokens'] / lookup['calls']:.2f}"
            body.append([text, *times, f"{plain['p50'] / lookup['p50']:.2f}", share])
        row = found[0]
        notes = [
            f"{row['tokens']:,} tokens, up to {row['drafts']} drafts, {row['threads']} threads;"
            " median time per token.",
            f"code: `{FILE}.py` with `{OLD}` renamed to `{NEW}`, after the original file;"
            f" prose: Python's documentation of `{PAGE}`.",
        ]
        head = ["text", "plain", "prompt lookup", "×", "tokens per call"]
        yield Table("Prompt lookup", head, body, notes)
    edits = rows_of(rows, "edit")
    if edits:
        shares = sorted({row["edit"] for row in edits})
        head = ["edit at", *(NAMES[way] for way in WAYS)]
        body = [
            [
                f"{100 * share:.0f} %",
                *(f"{find_row(edits, edit=share, way=w)['p50']:.2f} s" for w in WAYS),
            ]
            for share in shares
        ]
        row = edits[0]
        title = f"Time to the first token after an edit of {row['length']:,} tokens"
        yield Table(title, head, body, [f"{row['threads']} threads."])
        yield _bytes(row, find_row(rows, what="text", way="lookup"))


def _bytes(row: Row, text: Row) -> Table:
    """Return the bytes of a session."""
    body = [
        ["EA-6, state", row["state"]],
        ["EA-6, state and history of 64 tokens", text["bytes"]],
        [f"EA-6, {row['count']} snapshots", row["snapshots"]],
        [f"EA-6, {row['count']} snapshots in 8 bits", row["int8"]],
        ["SA, keys and values", row["keys"]],
    ]
    cells = [[name, f"{size / 2**20:,.2f} MiB"] for name, size in body]
    note = (
        f"One session of {row['length']:,} tokens with a snapshot every {row['every']} tokens."
        f" After a snapshot in 8 bits, logits differ by {100 * row['int8_error']:.2f} % of their"
        " spread."
    )
    return Table("Bytes of a session", ["held", "size"], cells, [note])


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw the time to the first token after an edit."""
    found = rows_of(rows, "edit")
    points = [
        {"series": SERIES[row["way"]][0], "x": 100 * row["edit"], "y": row["p50"]}
        | {"low": row["p20"], "high": row["p80"]}
        for row in found
    ]
    if not found:
        return None
    title, x = "Time to the first token after an edit", "place of the edit, % of the text"
    return Chart([lines(title, points, x=x, y="s", looks=dict(SERIES.values()))])


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the texts and edits for which another way is faster."""
    found = rows_of(rows, "text")
    for text in TEXTS if found else ():
        if (ratio := _speedup(rows, text)) < 1:
            yield f"Plain decoding of {text} is faster than prompt lookup: by {1 / ratio:.2f} ×."
    edits = rows_of(rows, "edit")
    for share in sorted({row["edit"] for row in edits}):
        ours, *others = (find_row(edits, edit=share, way=way) for way in WAYS)
        for other in others:
            if other["p50"] < ours["p50"]:
                by = f"{ours['p50'] / other['p50']:.2f} ×"
                where = f"After an edit at {100 * share:.0f} %"
                yield f"{where}, {NAMES[other['way']]} is faster: by {by}."
