"""A `SequenceClassifier` learnt from series of unequal length, and what it makes of others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from eattn.models import SequenceClassifier
from eattn.timeseries.arrays import held_out, pieces, side_by_side
from eattn.timeseries.settings import digest
from eattn.train import History, ListDataset, Task, TrainConfig, isolated, move, train

METRIC = "val_loss"
AT_ONCE = 64  # cases in a batch where no gradient is needed
Labelled = tuple[Tensor, int]  # a series [length, channels] and the number of its class
Batch = tuple[Tensor, Tensor | None, Tensor]  # series, valid samples, labels


def learn(
    series: Sequence[Tensor],
    y: NDArray[np.int64],
    design: Mapping[str, Any],
    config: TrainConfig,
    *,
    validation_fraction: float,
    progress: bool,
) -> tuple[SequenceClassifier, History]:
    """A classifier made as `design` says, with its best weights on the cases held out, if any."""
    cases = list(zip(series, y.tolist(), strict=True))
    judged = set(held_out(y, validation_fraction, seed=config.seed).tolist())
    learnt = [case for i, case in enumerate(cases) if i not in judged]
    with isolated(config.seed):
        model = SequenceClassifier(**design)
    data = digest([*series, torch.from_numpy(y)])
    task = Task(ListDataset(learnt, _collate), _loss, data=data)
    if judged:
        kept = [cases[i] for i in sorted(judged)]
        judge: dict[str, Any] = dict(evaluate=lambda model: _judge(model, kept), metric=METRIC)
        task = replace(task, **judge, better="lower")
    else:
        config = replace(config, patience=None)
    history = train(model, task, config, progress=progress)
    return model, history


def probabilities(
    model: SequenceClassifier, series: Sequence[Tensor], *, longest: int
) -> NDArray[np.float64]:
    """Of each class [cases, classes]; those of a series beyond `longest` are its pieces' mean."""
    parts = [pieces(x, longest) for x in series]
    flat = [piece for part in parts for piece in part]
    owner = torch.repeat_interleave(torch.tensor([len(part) for part in parts], dtype=torch.int64))
    with torch.inference_mode():
        found = [logits.double().cpu().softmax(-1) for logits in _logits(model, flat)]
    sums = torch.zeros(len(parts), model.classes, dtype=torch.float64)
    if found:
        sums.index_add_(0, owner, torch.cat(found))
    return (sums / sums.sum(1, keepdim=True)).numpy()


def _logits(model: nn.Module, series: Sequence[Tensor]) -> Iterator[Tensor]:
    """[cases, classes], in batches."""
    device = next(model.parameters()).device
    for start in range(0, len(series), AT_ONCE):
        x, key_mask = move(side_by_side(series[start : start + AT_ONCE]), device)
        yield model(x, key_mask=key_mask)


def _collate(cases: Sequence[Labelled]) -> Batch:
    x, key_mask = side_by_side([x for x, _ in cases])
    return x, key_mask, torch.tensor([label for _, label in cases])


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    x, key_mask, label = batch
    return F.cross_entropy(model(x, key_mask=key_mask), label)


def _judge(model: nn.Module, cases: Sequence[Labelled]) -> dict[str, float]:
    """On cases held out."""
    logits = torch.cat([x.float().cpu() for x in _logits(model, [x for x, _ in cases])])
    label = torch.tensor([label for _, label in cases])
    right = (logits.argmax(-1) == label).double().mean()
    return {METRIC: F.cross_entropy(logits, label).item(), "val_accuracy": right.item()}
