"""Runs of a language model, a classifier and a forecaster in however many processes there are.

A module of its own, as other processes import it.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torchrun_helpers import norms

from eattn.data.text import Document, Text, split
from eattn.lm import LMConfig, train_lm, run
from eattn.timeseries import classifying, training
from eattn.timeseries.dataset import Material
from eattn.timeseries.inputs import rows_of
from eattn.timeseries.regularize import records
from eattn.timeseries.settings import seed_of
from eattn.train import History, Processes, TrainConfig, torchrun

MODES: dict[int, dict[str, dict[str, Any]]] = {
    4: {
        "ddp and sequence": dict(sequence_parallel=2),
        "both": dict(fsdp=True, sequence_parallel=2),
    },
    2: {
        "ddp": {},
        "fsdp": dict(fsdp=True),
        "sequence": dict(sequence_parallel=2),
        "both": dict(fsdp=True, sequence_parallel=2),
    },
}
CONFIG = LMConfig(
    hidden=8,
    layers=2,
    length=24,
    batch_tokens=96,
    steps=6,
    positions=True,
    evaluations=3,
    validation_tokens=48,
    lr=0.02,
)
Result = dict[str, Any]


def text() -> Text:
    """Documents shorter than a row, and longer ones: sequences begin and end anywhere."""
    lines = [f"line {i} says {'again ' * (i % 5)}{i * i}\n".encode() for i in range(40)]
    return split([Document(str(i), b"".join(lines[i : i + 1 + i % 4])) for i in range(30)])


def result(history: History, model: nn.Module) -> Result:
    rows = [(row.step, row.loss, *row.metrics.values()) for row in history.rows]
    return {"rows": [row[:3] for row in rows], "weights": dict(model.state_dict())}


def language(**places: Any) -> Result:
    learnt = train_lm(text(), CONFIG, **places)
    return result(learnt.history, learnt.model)


def short() -> Result:
    """Every row a batch of its own, and the last one a single token: fewer than processes."""
    documents = [Document("", b"a" * CONFIG.length), Document("", b"b" * CONFIG.length)]
    settings = replace(CONFIG, batch_tokens=CONFIG.length, steps=4, evaluations=2)
    learnt = train_lm(Text(*((document,) for document in documents)), settings)
    return result(learnt.history, learnt.model)


def classifier() -> Result:
    rng = np.random.default_rng(0)
    series = [torch.from_numpy(rng.normal(size=(9 + i % 7, 2))).float() + i % 2 for i in range(30)]
    design = dict(
        channels=2, classes=2, pooling="flatten", embed="conv", dim=8, depth=1, max_len=15
    )
    config = TrainConfig(epochs=2, batch_size=10, optimizer="radam", lr=0.01)
    model, history = classifying.train_lm(
        series,
        np.arange(30) % 2,
        design,
        config,
        validation_fraction=0.3,  # 21 are left: the last batch is one case
        progress=False,
    )
    return result(history, model)


def forecaster() -> Result:
    found = records(rows_of(np.sin(np.arange(90) / 3).tolist()), None)
    material = Material(found, fraction=0.2, window=None, context=11, horizon=3)
    params = dict(mixer="ea-6", dim=8, depth=1, heads=2, dropout=0.0, lags=4)
    config = TrainConfig(epochs=None, max_steps=6, evaluate_every=3, batch_size=8, lr=0.01)
    model, history = training.train_lm(
        material, training.design_of(params, material), config, progress=False
    )
    return result(history, model)


RUNS: dict[str, Callable[[], Result]] = {
    "language": language,
    "short": short,
    "classifier": classifier,
    "forecaster": forecaster,
}


def runs(mode: str) -> list[str]:
    """Return the runs that a mode is for: only language models share a sequence."""
    return list(RUNS) if mode in ("ddp", "fsdp") else ["language", "short"]


def noted(run: Callable[[], Result]) -> Result:
    with norms() as found:
        return run() | {"norms": found}


class Cut(Exception):
    """Off, in the middle of a run."""


def cut_off(folder: Path) -> None:
    """A run that ends after its second checkpoint, at step 4 of 6."""
    from eattn.train import loop

    step, steps = loop._Run._step, []

    def counted(self: Any, *args: Any) -> tuple[float, float]:
        steps.append(1)
        if len(steps) == 6:
            raise Cut
        return step(self, *args)

    loop._Run._step = counted  # type: ignore[method-assign]
    try:
        language(checkpoint=folder, checkpoint_every=2)
    except Cut:
        pass
    finally:
        loop._Run._step = step  # type: ignore[method-assign]


def work() -> dict[str, Any]:
    """All runs in all modes; four processes leave a checkpoint, from which two go on."""
    folder = Path(sys.argv[-1])
    world = Processes.current().count
    found: dict[str, Any] = {}
    for mode, options in MODES[world].items():
        with torchrun(**options):
            for name in runs(mode):
                found[f"{name} {mode}"] = noted(RUNS[name])
            if mode == "both" and world == 4:
                cut_off(folder)
            if mode in ("ddp", "sequence") and world == 2:
                here = folder.parent / mode
                found[f"resumed {mode}"] = language(checkpoint=here, checkpoint_every=2)
    found["seed"] = seed_of(None)
    found["refused"] = {name: refusal(**o) for name, o in REFUSED.items()}
    found["refused"]["no room"] = no_room(folder.with_name(f"full{world}"))
    return found


REFUSED: dict[str, dict[str, Any]] = {
    "3 of a sequence": dict(sequence_parallel=3),
    "a mixer": dict(mixer="sa"),
    "a text": dict(other=True),
    "a classifier": dict(work=classifier),
}


def refusal(
    mixer: str = "ea-6",
    sequence_parallel: int = 2,
    other: bool = False,
    work: Callable[[], Result] | None = None,
) -> str:
    mine = text()
    if other and Processes.current().first:  # as long as that of the others
        told = tuple(Document("", document.content.upper()) for document in mine.validation)
        mine = replace(mine, validation=told)
    try:
        with torchrun(sequence_parallel=sequence_parallel):
            if work is None:
                train_lm(mine, replace(CONFIG, mixer=mixer))
            else:
                work()
    except ValueError as error:
        return str(error)
    return "nothing"


def no_room(out: Path) -> str:
    """What is said where the first process cannot begin a run."""
    error = OSError(28, "No space left on device")
    try:
        with patch.object(run.checkpoint_dir, "begin", side_effect=error):
            run.run([Path(__file__)], out, CONFIG)
    except OSError as error:
        return str(error)
    return "nothing"


def differ(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max((ours[name] - x).abs().max().item() for name, x in theirs.items())
