"""The backends of `ea_series` and the choice among them.

A new backend is one more entry in the list below: no other file names the backend modules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from eattn.ops import eager, native, triton
from eattn.ops.inputs import Gradients, Outputs


@dataclass(frozen=True)
class Backend:
    """One implementation of the operator."""

    name: str
    # (Inputs, expansion=, causal=, save=) -> y, final s, z, shift, and what backward needs
    forward: Callable[..., Outputs]
    # (gy, gs, gz, Inputs, final sums, saved, expansion=, causal=) -> gradients of q, k, v, s, z
    backward: Callable[..., Gradients]
    # (q, cu_seqlens, terms) -> shape of the tensor that a causal forward saves for the backward
    saved_shape: Callable[[Tensor, Tensor | None, int], tuple[int, ...]]
    device: str | None  # type of the device it runs on; None: any
    why_not: str | None  # reason why it cannot run on this machine


def _native(name: str, isa: str | None = None) -> Backend:
    forward, backward = partial(native.forward, isa=isa), partial(native.backward, isa=isa)
    return Backend(name, forward, backward, native.saved_shape, "cpu", native.unavailable(isa))


# Fastest first; eager always fits, so those after it must be asked for by name. The reasons are
# found once, here, because torch.compile traces through `choose`.
_BACKENDS = (
    _native("native"),
    Backend(
        "triton",
        triton.forward,
        triton.backward,
        triton.saved_shape,
        triton.DEVICE,
        triton.unavailable(),
    ),
    Backend("eager", eager.forward, eager.backward, lambda q, cu_seqlens, terms: (0,), None, None),
    *(_native(f"native-{isa}", isa) for isa in ("avx512", "avx2", "baseline")),
)
BY_NAME = {backend.name: backend for backend in _BACKENDS}


def choose(name: str | None, q: Tensor) -> Backend:
    """Return the fastest backend that fits q, or the named one if it can run."""
    device = q.device.type
    if name is None:
        for backend in BY_NAME.values():
            if backend.why_not is None and backend.device in (None, device):
                return backend
    if name not in BY_NAME:
        raise ValueError(f"backend must be None or one of {', '.join(BY_NAME)}; got {name!r}")
    backend = BY_NAME[name]
    why_not = backend.why_not
    if why_not is None and backend.device not in (None, device):
        where = "the CPU" if backend.device == "cpu" else "a CUDA or ROCm device"
        why_not = f"it runs on {where}, and q is on {q.device}"
    if why_not is not None:
        raise ValueError(f"backend {name!r} cannot run here: {why_not}")
    return backend


def backends() -> dict[str, str | None]:
    """Return which backends can run on this machine.

    Returns
    -------
    dict
        For "eager", "native" and "triton" None if it can run, else the reason why not.

    Examples
    --------
    >>> backends()["eager"] is None
    True
    """
    why_not = {name: BY_NAME[name].why_not for name in ("eager", "native", "triton")}
    # Only asked here: it initialises the GPU driver.
    why_not["triton"] = why_not["triton"] or triton.no_device()
    return why_not
