"""Where a run computes and in which precision.

On the CPU all of it is tested. What is only for CUDA (the choice of "auto") has not been run on a
card.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(model: nn.Module, name: str) -> torch.device:
    """The device of that name; "auto": where the model is, or CUDA for one on the CPU."""
    here = next((p.device for p in model.parameters()), torch.device("cpu"))
    if name != "auto":
        if torch.device(name).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device must be there, got {name!r}, but torch finds no CUDA here")
        return torch.device(name)
    return torch.device("cuda") if here.type == "cpu" and torch.cuda.is_available() else here


def choose_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """What autocast computes in; None: no autocast, everything in the model's own dtype."""
    if name != "auto":
        return DTYPES.get(name)
    if device.type != "cuda":
        return None  # on a CPU mixed precision is slower as often as faster
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def make_scaler(device: torch.device, dtype: torch.dtype | None) -> torch.amp.GradScaler:
    """Scales the loss so that small gradients survive float16; does nothing for other dtypes."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
