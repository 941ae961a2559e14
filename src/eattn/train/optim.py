"""Optimizer, device and precision of a run. Nothing here has been run on a GPU."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from eattn.train.config import TrainConfig

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
CODES = {"bfloat16": "bf16", "float16": "fp16"}  # in names of oneDNN


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Make AdamW or RAdam, both with decoupled weight decay, for the trainable parameters.

    Matrices decay; biases, norms and embedding tables (tied ones too) do not. Decay pulls towards a
    map that ignores its input, which is of no use for a bias or a gain, and would let rarely used
    rows of a table fade between their gradients.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("model must have parameters that require gradients, got none")
    tables = {
        id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)
    }
    decayed = [p for p in trained if p.dim() >= 2 and id(p) not in tables]
    others = [p for p in trained if p.dim() < 2 or id(p) in tables]
    pairs = ((decayed, config.weight_decay), (others, 0.0))
    groups = [{"params": params, "weight_decay": decay} for params, decay in pairs if params]
    options: dict[str, Any] = {"lr": config.lr, "betas": tuple(config.betas)}
    if config.optimizer == "radam":
        return torch.optim.RAdam(groups, decoupled_weight_decay=True, **options)
    # Fused, a step of a small model on a CPU takes a tenth of the time.
    fused = all(p.device.type in ("cpu", "cuda") for p in trained)
    return torch.optim.AdamW(groups, fused=fused, **options)


def choose_device(model: nn.Module, name: str) -> torch.device:
    """Return the device `name`; "auto" is CUDA if available for a model on the CPU."""
    if name != "auto":
        if torch.device(name).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device={name!r} requested, but CUDA is not available")
        return torch.device(name)
    current = next((p.device for p in model.parameters()), torch.device("cpu"))
    use_cuda = current.type == "cpu" and torch.cuda.is_available()
    return torch.device("cuda") if use_cuda else current


def choose_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of autocast, or None for no autocast."""
    if name != "auto":
        if device.type == "cpu" and name in DTYPES and not cpu_supports(name):
            warnings.warn(
                f"this CPU has no instructions for {name}: precision='float32' is much faster",
                stacklevel=2,
            )
        return DTYPES.get(name)
    if device.type != "cuda":
        return None  # mixed precision on a CPU is slower as often as faster
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def cpu_supports(name: str) -> bool:
    """Return whether the CPU multiplies matrices of a 16-bit type with instructions for it."""
    support = getattr(torch.ops.mkldnn, f"_is_mkldnn_{CODES[name]}_supported", None)
    return bool(torch.backends.mkldnn.is_available() and support and support())


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
