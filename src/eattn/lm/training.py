"""Train a language model on text; its quality is bits per byte of validation text."""

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

from eattn._checks import check_size
from eattn.data.text import Text
from eattn.distributed import Shard
from eattn.hf import EAConfig, EAForCausalLM
from eattn.lm.dataset import Batch, PackedDataset
from eattn.lm.tokenizer import BYTES, byte_tokenizer, encode, spelling, train_bpe
from eattn.train import History, Processes, Schedule, Task, TrainConfig, isolated, move, train

TOKENIZERS = ("bytes", "bpe")
METRIC = "bits_per_byte"
EVALUATION_TIME = "evaluation_seconds"


@dataclass(frozen=True)
class LMConfig:
    """Options of a language model and of its training.

    Examples
    --------
    >>> LMConfig(mixer="sa", hidden=64).model(257).num_attention_heads
    8
    """

    mixer: str = "ea-6+decay"  # any name that `eattn.nn.make_mixer` accepts
    hidden: int = 256  # channels of a token
    layers: int = 4
    ffn: int | None = None  # hidden channels of the feed-forward networks; None: 4 * hidden
    short_conv: int | None = 4  # width of the convolution before each mixer; None: no convolution
    positions: bool = False  # learned positions, which limit texts to `length` tokens; aft: always
    tokenizer: str = "bytes"  # or "bpe"
    vocab: int = 4096  # tokens of a BPE
    length: int = 256  # tokens of a row
    batch_tokens: int = 4096  # tokens of a step
    steps: int | None = 400
    epochs: int | None = None  # instead of steps
    lr: float = 2e-3
    evaluations: int = 10
    validation_tokens: int = 2**16  # maximum number that an evaluation reads
    seed: int = 0
    precision: str = "auto"  # of TrainConfig; "bfloat16" is faster on CPUs that support it

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            known = " or ".join(map(repr, TOKENIZERS))
            raise ValueError(f"tokenizer must be {known}, got {self.tokenizer!r}")
        for name in ("length", "evaluations", "validation_tokens"):
            check_size(name, getattr(self, name))
        if self.batch_tokens < self.length:
            raise ValueError(
                f"batch_tokens must be at least length = {self.length}, got {self.batch_tokens}"
            )
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give either steps or epochs, got {self.steps} and {self.epochs}")
        self.model(BYTES + 1)  # checks the other fields
        self.training(1)

    def model(self, vocab: int) -> EAConfig:
        """Return the configuration of a model with `vocab` tokens; token `BYTES` ends a text."""
        limited = self.positions or self.mixer == "aft"  # aft has biases for `length` positions
        return EAConfig(
            vocab_size=vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            intermediate_size=self.ffn,
            mixer=self.mixer,
            short_conv=self.short_conv,
            max_position_embeddings=self.length if limited else None,
            bos_token_id=BYTES,
            eos_token_id=BYTES,
            pad_token_id=BYTES,
        )

    def training(self, rows: int, **options: Any) -> TrainConfig:
        """Return the configuration of a run on `rows` rows; `options` are further fields."""
        size = min(self.batch_tokens // self.length, rows)
        common: Any = dict(batch_size=size, drop_last=True, lr=self.lr, seed=self.seed)
        common |= dict(precision=self.precision) | options
        common |= dict(epochs=self.epochs, max_steps=self.steps, betas=(0.9, 0.95))
        steps = Schedule(rows, TrainConfig(**common)).steps
        every = max(1, round(steps / self.evaluations))
        return TrainConfig(**common, schedule="cosine", warmup=0.05, evaluate_every=every)

    def make_tokenizer(self, text: Text) -> PreTrainedTokenizerFast:
        """Return a byte tokenizer, or a BPE trained on the training documents."""
        if self.tokenizer == "bytes":
            return byte_tokenizer()
        return train_bpe(text.train, self.vocab)


@dataclass(frozen=True)
class Point:
    """One evaluation; `seconds` counts training alone."""

    step: int
    tokens: int
    seconds: float
    bits_per_byte: float


@dataclass(frozen=True)
class TrainedLM:
    """Result of `train_lm`: the model with its best weights, its tokenizer, and the history."""

    model: EAForCausalLM
    tokenizer: PreTrainedTokenizerFast
    history: History
    batch_tokens: int  # tokens of a step

    @property
    def best(self) -> Point:
        assert self.history.best is not None
        step = self.history.best.step
        return next(point for point in self.points if point.step == step)

    @property
    def points(self) -> list[Point]:
        """All evaluations."""
        found, spent = [], 0.0
        for row in self.history.rows:
            spent += row.metrics[EVALUATION_TIME]
            tokens = row.step * self.batch_tokens
            found.append(Point(row.step, tokens, row.seconds - spent, row.metrics[METRIC]))
        return found

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def train_lm(
    text: Text,
    config: LMConfig,
    *,
    tokenizer: PreTrainedTokenizerFast | None = None,
    progress: bool | Console = False,
    **options: Any,
) -> TrainedLM:
    """Train a language model on a text.

    Parameters
    ----------
    text : Text
        Documents for training and for validation.
    config : LMConfig
    tokenizer : PreTrainedTokenizerFast, optional
        By default the one that `config` describes.
    progress : bool or Console, default False
    **options
        Further fields of `TrainConfig`, such as `device` and `checkpoint`.
    """
    tokenizer = config.make_tokenizer(text) if tokenizer is None else tokenizer
    dataset, validation = (
        PackedDataset(encode(tokenizer, documents), length=config.length, end=BYTES)
        for documents in (text.train, text.validation)
    )
    with isolated(config.seed):
        model = EAForCausalLM(config.model(len(tokenizer)))
    sizes = byte_counts(tokenizer)

    def evaluate(model: nn.Module) -> dict[str, float]:
        start = time.perf_counter()
        bits = bits_per_byte(
            model, validation, sizes, config.batch_tokens, config.validation_tokens
        )
        return {METRIC: bits, EVALUATION_TIME: time.perf_counter() - start}

    task = Task(
        dataset,
        loss,
        evaluate,
        metric=METRIC,
        better="lower",
        data=text.fingerprint,
        shard=shard,
    )
    run = config.training(len(dataset), **options)
    history = train(model, task, run, progress=progress)
    return TrainedLM(model, tokenizer, history, run.batch_size * config.length)


def shard(batch: Batch, shard: Shard) -> tuple[Batch, Shard]:
    """Return this process's tokens of a batch, each with its label, and their shard."""
    tokens, labels, cu_seqlens = batch
    own, offsets, shard = shard.packed(cu_seqlens)
    return (tokens[:, own], labels[own], offsets), shard


def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Return the mean cross-entropy per token in nats, and the number of tokens."""
    count = len(batch[1])
    return _nats(model, batch) / max(1, count), float(count)


def byte_counts(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return the number of bytes that each token stands for, [vocab]."""
    spelled = spelling(tokenizer)
    assert spelled is not None
    return torch.tensor([len(part) for part in spelled])


@torch.no_grad()
def bits_per_byte(
    model: nn.Module, dataset: PackedDataset, sizes: Tensor, batch_tokens: int, max_tokens: int
) -> float:
    """Return the bits that the model needs per byte of a text.

    The end of a document counts with its bytes. Inside `torchrun(sequence_parallel=N)` processes
    share the tokens of a batch.

    Parameters
    ----------
    sizes : Tensor, shape (vocab,)
        Number of bytes of each token; see `byte_counts`.
    batch_tokens : int
        Tokens of a forward.
    max_tokens : int
        Maximum number of tokens to read, from rows evenly spread over the text.
    """
    device = next(model.parameters()).device
    nats, count, whole = 0.0, 0, Processes.current().shard
    for batch in _batches(dataset, batch_tokens, max_tokens):
        count += int(sizes[batch[1]].sum())
        context: AbstractContextManager[Any] = nullcontext()
        if whole is not None:
            batch, part = shard(batch, whole)
            context = part.active()
        with context:
            spent = _nats(model, move(batch, device))
        if whole is not None:
            dist.all_reduce(spent, group=whole.group)
        nats += float(spent)
    return nats / math.log(2) / count if count else math.nan


def _batches(dataset: PackedDataset, batch_tokens: int, max_tokens: int) -> Iterator[Batch]:
    count = min(len(dataset), max(1, max_tokens // dataset.length))
    rows = np.linspace(0, len(dataset) - 1, count).round().astype(int)
    size = max(1, batch_tokens // dataset.length)
    for at in range(0, len(rows), size):
        yield dataset.collate(rows[at : at + size].tolist())


def _nats(model: nn.Module, batch: Batch) -> Tensor:
    """Return the summed cross-entropy of a batch."""
    tokens, labels, cu_seqlens = batch
    logits = model(input_ids=tokens, cu_seqlens=cu_seqlens).logits[0]
    return F.cross_entropy(logits.float(), labels, reduction="sum")
