"""Options of a run: length, optimizer, learning rate, precision, checkpoints."""

import json
import os
from dataclasses import dataclass, fields
from typing import Any

import torch

from eattn._checks import check_bool, check_number, check_size

CHOICES = {
    "optimizer": ("adamw", "radam"),
    "schedule": ("constant", "cosine", "linear"),
    "keep": ("best", "last"),
    "precision": ("auto", "float32", "bfloat16", "float16"),
}
COUNTS = ("epochs", "max_steps", "batch_size", "evaluate_every", "patience", "checkpoint_every")
# Options that do not affect the numbers of a run on one machine.
NOT_NUMERIC = ("device", "checkpoint", "checkpoint_every", "checkpoint_seconds", "tensorboard")


@dataclass(frozen=True)
class TrainConfig:
    """Options of `train`; a step is one batch. `dataclasses.replace` makes a changed copy.

    Examples
    --------
    >>> TrainConfig(epochs=50, lr=3e-4, schedule="cosine", warmup=0.05, patience=10).clip
    1.0
    """

    epochs: int | None = 20  # maximum number of passes over the dataset; None: use max_steps
    max_steps: int | None = None  # maximum number of steps; may end within an epoch
    batch_size: int = 32
    drop_last: bool = False  # drop the last batch of an epoch if it is smaller
    optimizer: str = "adamw"  # or "radam"; both with decoupled weight decay
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01  # of matrices only, not of biases, norms and embeddings
    schedule: str = "constant"  # after the warmup; "cosine" and "linear" fall to 0 at the end
    warmup: int | float = 0  # steps (an int), or a fraction of all steps (a float below 1)
    clip: float | None = 1.0  # maximum norm of all gradients together; None: no clipping
    evaluate_every: int | None = None  # steps; None: after every epoch
    patience: int | None = None  # stop after this many evaluations without a new best
    keep: str = "best"  # weights at the end: "best" by the task's metric, or "last"
    seed: int = 0  # of the order of samples and of dropout
    device: str = "auto"  # the model's device, or CUDA if available for a model on the CPU
    precision: str = "auto"  # 16-bit autocast on CUDA, float32 elsewhere
    checkpoint: str | os.PathLike[str] | None = None  # folder to resume from and to save in
    checkpoint_every: int | None = None  # steps; default: after every evaluation
    checkpoint_seconds: float | None = None  # since the last checkpoint
    tensorboard: str | os.PathLike[str] | None = None  # folder for its event files

    def __post_init__(self) -> None:
        for name in COUNTS:
            if getattr(self, name) is not None or name == "batch_size":
                check_size(name, getattr(self, name))
        if self.epochs is None and self.max_steps is None:
            raise ValueError("epochs and max_steps must not both be None")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                listed = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} must be one of {listed}, got {getattr(self, name)!r}")
        check_bool("drop_last", self.drop_last)
        self._check_numbers()
        self._check_paths()

    def _check_numbers(self) -> None:
        check_number("lr", self.lr, above=0)
        check_number("weight_decay", self.weight_decay, least=0)
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, as (0.9, 0.999), got {self.betas!r}")
        for beta in self.betas:
            check_number("betas", beta, least=0, below=1)
        if isinstance(self.warmup, float):
            check_number("warmup", self.warmup, least=0, below=1)
        else:
            _check_int("warmup", self.warmup)
        if self.clip is not None:
            check_number("clip", self.clip, above=0)
        if _check_int("seed", self.seed) >= 2**32:
            raise ValueError(f"seed must be below 2**32, got {self.seed}")

    def _check_paths(self) -> None:
        for name in ("checkpoint", "tensorboard"):
            folder = getattr(self, name)
            if folder is not None and not isinstance(folder, str | os.PathLike):
                raise TypeError(f"{name} must be a folder or None, got {type(folder).__name__}")
        if self.checkpoint_seconds is not None:
            check_number("checkpoint_seconds", self.checkpoint_seconds, above=0)
        for name in ("checkpoint_every", "checkpoint_seconds"):
            if getattr(self, name) is not None and self.checkpoint is None:
                raise ValueError(f"{name} needs checkpoint, a folder")
        try:
            if self.device != "auto":
                torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"device must be 'auto' or a device of torch, got {self.device!r}: {reason}"
            ) from None

    def numerics(self) -> dict[str, Any]:
        """Return the fields that affect the numbers of a run, as JSON values."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NOT_NUMERIC}
        plain: dict[str, Any] = json.loads(json.dumps(kept))
        return plain


def _check_int(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name} must be at least 0, got {value}")
    return value
