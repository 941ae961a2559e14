"""List of the backends of `ea_series`, and the choice among them.

To add a backend, add an entry to the list below. No other file names the backend modules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from eattn.ops import eager, grid, native, triton
from eattn.ops.expansion import Expansion
from eattn.ops.inputs import Gradients, Outputs


@dataclass(frozen=True)
class Backend:
    """Implementation of the operator."""

    name: str
    # (Inputs, expansion=, causal=, save=) -> y, final s, z, shift, tensor saved for `backward`
    forward: Callable[..., Outputs]
    # (gy, gs, gz, Inputs, final sums, saved, expansion=, causal=) -> gradients of q, k, v, s, z
    backward: Callable[..., Gradients]
    # (q, cu_seqlens, expansion) -> shape of the tensor that a causal forward saves
    saved_shape: Callable[[Tensor, Tensor | None, Expansion], tuple[int, ...]]
    device: str | None  # device type it requires; None for any device
    why_not: str | None  # reason why it cannot run on this machine; None if it can
    max_terms: int | None = None  # largest number of terms that it supports; None for any
    decays: bool = False  # whether it supports log_decay


def _eager(function: str) -> Callable[..., Any]:
    """Return a function of `eager` that uses `grid` for wide grids."""

    def call(*args: Any, expansion: Expansion, **options: Any) -> Any:
        module = grid if expansion.wide else eager
        return getattr(module, function)(*args, expansion=expansion, **options)

    return call


def _eager_saved_shape(q: Tensor, _: Tensor | None, expansion: Expansion) -> tuple[int, ...]:
    return grid.saved_shape(q) if expansion.wide else (0,)


def _native(name: str, isa: str | None = None) -> Backend:
    forward, backward = partial(native.forward, isa=isa), partial(native.backward, isa=isa)
    why_not = native.unavailable(isa)
    return Backend(name, forward, backward, native.saved_shape, "cpu", why_not, decays=True)


# Fastest first. Eager always fits, so the entries after it are only used by name. `why_not` is
# computed once, at import, because torch.compile traces through `choose`.
_BACKENDS = (
    _native("native"),
    Backend(
        "triton",
        triton.forward,
        triton.backward,
        triton.saved_shape,
        triton.DEVICE,
        triton.unavailable(),
        triton.MAX_TERMS,
        decays=True,
    ),
    Backend(
        "eager", _eager("forward"), _eager("backward"), _eager_saved_shape, None, None, decays=True
    ),
    *(_native(f"native-{isa}", isa) for isa in ("avx512", "avx2", "baseline")),
)
BY_NAME = {backend.name: backend for backend in _BACKENDS}


def choose(name: str | None, q: Tensor, expansion: Expansion) -> Backend:
    """Return the fastest backend that fits q and the expansion, or the named one if it can run."""
    device, terms = q.device.type, expansion.terms
    if name is None:
        for backend in BY_NAME.values():
            small = backend.max_terms is None or terms <= backend.max_terms
            if backend.why_not is None and backend.device in (None, device) and small:
                return backend
    if name not in BY_NAME:
        raise ValueError(f"backend must be None or one of {', '.join(BY_NAME)}; got {name!r}")
    backend = BY_NAME[name]
    why_not = backend.why_not
    if why_not is None and backend.device not in (None, device):
        where = "the CPU" if backend.device == "cpu" else "a CUDA or ROCm device"
        why_not = f"it runs on {where}, and q is on {q.device}"
    elif why_not is None and backend.max_terms is not None and terms > backend.max_terms:
        why_not = f"it supports at most {backend.max_terms} nodes, and the expansion has {terms}"
    if why_not is not None:
        raise ValueError(f"backend {name!r} cannot run here: {why_not}")
    return backend


def backends() -> dict[str, str | None]:
    """Return for each backend whether it can run on this machine.

    Returns
    -------
    dict
        Maps "eager", "native" and "triton" to None if the backend can run, else to the reason.
        "triton" supports at most 65 nodes; on a GPU, larger grids run on "eager".

    Examples
    --------
    >>> backends()["eager"] is None
    True
    """
    why_not = {name: BY_NAME[name].why_not for name in ("eager", "native", "triton")}
    # Looking for a device initialises the GPU driver, so it is not done at import.
    why_not["triton"] = why_not["triton"] or triton.no_device()
    return why_not
