"""Train pretrained weights on synthetic groups; a run resumes from its folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eattn.train import History, Task, TrainConfig, isolated, train
from paper.beyond.pretraining.recipe import VALIDATION, Foundation, Groups, loss

GROUPS = 4  # per step
JUDGED = 64  # groups of the validation part
EVALUATIONS = 25
CHECKPOINT_SECONDS = 60.0
DESIGN: Mapping[str, Any] = {"dim": 128, "depth": 2, "ffn": 256, "norm": "pre", "short_conv": 4}


@dataclass(frozen=True)
class Run:
    """Options of a run."""

    mixer: str = "ea-6+decay"
    steps: int = 10_000
    lr: float = 2e-3
    weight_decay: float = 0.05
    seed: int = 0
    precision: str = "bfloat16"

    def model(self) -> Foundation:
        """Return a model with seeded weights."""
        with isolated(self.seed):
            return Foundation(mixer=self.mixer, **DESIGN)


def pretrain(run: Run, folder: Path | None = None) -> tuple[Foundation, History]:
    """Train a model; every group is drawn once."""
    model = run.model()
    options: dict[str, Any] = {}
    if folder is not None:
        options = {"checkpoint": folder, "checkpoint_seconds": CHECKPOINT_SECONDS}
    config = TrainConfig(
        epochs=None,
        max_steps=run.steps,
        batch_size=GROUPS,
        lr=run.lr,
        betas=(0.9, 0.98),
        weight_decay=run.weight_decay,
        schedule="cosine",
        warmup=0.02,
        evaluate_every=max(run.steps // EVALUATIONS, 1),
        keep="last",
        seed=run.seed,
        precision=run.precision,
        device="cpu",
        **options,
    )
    dataset = Groups(run.steps * GROUPS, seed=run.seed)
    task = Task(dataset, loss, evaluate=lambda model: {"val_loss": validate(model)})
    return model, train(model, task, config, progress=True)


@torch.no_grad()
def validate(model: torch.nn.Module) -> float:
    """Return the mean loss of the groups of the validation part."""
    return float(loss(model, _judged()))


@cache
def _judged() -> list[dict[str, Any]]:
    return Groups(JUDGED, first=VALIDATION).collate(list(range(JUDGED)))


def save(model: Foundation, run: Run, path: Path) -> None:
    """Write the weights in float16, with what is needed to use and to repeat them."""
    weights = {name: x.half().contiguous() for name, x in model.full.state_dict().items()}
    about = {"design": {"mixer": run.mixer} | dict(DESIGN), "run": asdict(run)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path, metadata={name: json.dumps(x) for name, x in about.items()})
