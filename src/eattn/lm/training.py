"""A language model learnt from text, and judged by the bits it needs for a byte of other text."""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from eattn.data.packing import Packed
from eattn.data.text import Text
from eattn.distributed import Shard
from eattn.hf import EAForCausalLM
from eattn.lm.settings import Settings
from eattn.lm.tokenizer import BYTES, byte_tokenizer, encode, spelling, train_bpe
from eattn.train import History, Processes, Task, isolated, move, train

METRIC = "bits_per_byte"
SPENT = "evaluation_seconds"
Batch = tuple[Tensor, Tensor, Tensor]  # tokens [1, n], the token after each [n], offsets


class Corpus:
    """Rows of tokens as `eattn.train` takes cases: a batch is one row of packed sequences."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    def collate(self, indices: list[int]) -> Batch:
        tokens, labels, cu_seqlens = map(torch.from_numpy, self.packed.rows(indices))
        return tokens.unsqueeze(0), labels, cu_seqlens


@dataclass(frozen=True)
class Point:
    """One evaluation: after so many tokens, and so many seconds of training alone."""

    step: int
    tokens: int
    seconds: float
    bits_per_byte: float


@dataclass(frozen=True)
class Learnt:
    """What `learn` gives: the model with its best weights, its tokenizer, and what happened."""

    model: EAForCausalLM
    tokenizer: PreTrainedTokenizerFast
    history: History
    batch_tokens: int  # of a step

    @property
    def best(self) -> Point:
        assert self.history.best is not None
        step = self.history.best.step
        return next(point for point in self.points if point.step == step)

    @property
    def points(self) -> list[Point]:
        """Every evaluation; the time that they took themselves is not counted."""
        found, spent = [], 0.0
        for row in self.history.rows:
            spent += row.metrics[SPENT]
            tokens = row.step * self.batch_tokens
            found.append(Point(row.step, tokens, row.seconds - spent, row.metrics[METRIC]))
        return found

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def make_tokenizer(text: Text, settings: Settings) -> PreTrainedTokenizerFast:
    """Bytes, or pairs of them learnt from the text that is not held out."""
    if settings.tokenizer == "bytes":
        return byte_tokenizer()
    return train_bpe(text.learnt, settings.vocab)


def learn(
    text: Text,
    settings: Settings,
    *,
    tokenizer: PreTrainedTokenizerFast | None = None,
    progress: bool | Console = False,
    **places: Any,
) -> Learnt:
    """Train a model on a text; `places` are the folders and the device of a `TrainConfig`."""
    tokenizer = make_tokenizer(text, settings) if tokenizer is None else tokenizer
    rows, judged = (
        Packed(encode(tokenizer, part), length=settings.length, end=BYTES)
        for part in (text.learnt, text.held_out)
    )
    with isolated(settings.seed):
        model = EAForCausalLM(settings.model(len(tokenizer)))
    sizes = byte_counts(tokenizer)

    def evaluate(model: nn.Module) -> dict[str, float]:
        start = time.perf_counter()
        bits = bits_per_byte(model, judged, sizes, settings.batch_tokens, settings.judged)
        return {METRIC: bits, SPENT: time.perf_counter() - start}

    corpus = Corpus(rows)
    config = settings.training(len(corpus), **places)
    task = Task(
        corpus,
        loss,
        evaluate,
        metric=METRIC,
        better="lower",
        data=text.fingerprint,
        shard=shard,
    )
    history = train(model, task, config, progress=progress)
    return Learnt(model, tokenizer, history, config.batch_size * settings.length)


def shard(batch: Batch, shard: Shard) -> tuple[Batch, Shard]:
    """Return this process's tokens of a batch, each with its label, and the shard they are."""
    tokens, labels, cu_seqlens = batch
    own, offsets, shard = shard.packed(cu_seqlens)
    return (tokens[:, own], labels[own], offsets), shard


def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Mean nats a token, and how many tokens there are."""
    logits, labels = _logits(model, batch)
    count = len(labels)
    return F.cross_entropy(logits, labels, reduction="sum") / max(1, count), float(count)


def byte_counts(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """How many bytes each token stands for, [vocab]."""
    spelled = spelling(tokenizer)
    assert spelled is not None
    return torch.tensor([len(part) for part in spelled])


@torch.no_grad()
def bits_per_byte(model: nn.Module, text: Packed, sizes: Tensor, at_once: int, most: int) -> float:
    """Bits that the model needs for a byte of the text, of which `most` tokens are read.

    They are from all over the text. What the end of a document costs is counted with its bytes.
    Where processes share the tokens of a batch, they do so here.
    """
    device = next(model.parameters()).device
    nats, count, tokens = 0.0, 0, Processes.here().tokens
    for batch in _batches(text, at_once, most):
        count += int(sizes[batch[1]].sum())
        context: AbstractContextManager[Any] = nullcontext()
        if tokens is not None:
            batch, part = shard(batch, tokens)
            context = part.active()
        with context:
            logits, labels = _logits(model, move(batch, device))
        spent = F.cross_entropy(logits, labels, reduction="sum")
        if tokens is not None:
            dist.all_reduce(spent, group=tokens.group)
        nats += float(spent)
    return nats / math.log(2) / count if count else math.nan


def _batches(text: Packed, at_once: int, most: int) -> Iterator[Batch]:
    """Rows evenly spread over a text, in order, as many at once as there is room for."""
    corpus = Corpus(text)
    count = min(len(corpus), max(1, most // text.length))
    rows = np.linspace(0, len(corpus) - 1, count).round().astype(int)
    size = max(1, at_once // text.length)
    for at in range(0, len(rows), size):
        yield corpus.collate(rows[at : at + size].tolist())


def _logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits [tokens, vocab] and labels [tokens]."""
    tokens, labels, cu_seqlens = batch
    logits = model(input_ids=tokens, cu_seqlens=cu_seqlens).logits[0]
    return logits.float(), labels
