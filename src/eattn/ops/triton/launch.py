"""Forward and backward of the backend: allocate tensors and launch kernels."""

import contextlib
import functools
import threading
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eattn.ops.expansion import Expansion
from eattn.ops.inputs import Gradients, Inputs, Outputs, Sums, dense, kernel_sums
from eattn.ops.state import empty_sums
from eattn.ops.triton import INTERPRETED, configs, gradients, scan
from eattn.ops.triton.configs import MERGE, STEP, WIDE, Config, choices
from eattn.ops.triton.constants import Numbers, numbers

REAL = {torch.float32: tl.float32, torch.float64: tl.float64}
KERNELS = {
    "states": scan.states,
    "outputs": scan.outputs,
    "fused": scan.fused,
    "step": scan.step,
    "merge": scan.merge,
    "merge_back": gradients.merge_back,
    "query_gradients": gradients.query_gradients,
    "key_gradients": gradients.key_gradients,
}
# An autotuner stores its arguments in itself, and autograd runs a thread per GPU.
LOCK = threading.Lock()
# Fuse a * b + c, whatever the default of the Triton version is.
COMPILED = {"enable_fp_fusion": True}


def settings(config: Config, warp: int) -> dict[str, int]:
    """Return the number of channels and tokens of a configuration."""
    return dict(BLOCK=config.channels or config.warps * warp, TILE=config.tile)


@functools.cache
def _warp(device: torch.device) -> int:
    """Return the number of lanes of a warp: 64 on some AMD GPUs, else 32."""
    if INTERPRETED:
        return 32
    with _on(device):
        lanes: int = triton.runtime.driver.active.get_current_target().warp_size
    return lanes


@functools.cache
def _tuned(name: str, E: Numbers, warp: int, lent: bool) -> Any:
    """Return the autotuned kernel; tuning runs on the GPU, once per D.

    There is one autotuner per expansion, so that its key holds plain values that Triton can store
    in a file. Tuning runs the kernel repeatedly. With `lent`, the kernel overwrites its inputs,
    which are then restored before each run (see `_adjoints`).
    """
    kernel = KERNELS[name]
    some = choices(E.terms, E.wide, E.decays)
    options = [triton.Config(settings(c, warp), num_warps=c.warps) for c in some]
    key = [x for x in ("D", "CAUSAL") if x in kernel.arg_names]
    again = ["a_ptr", "y_ptr"] if lent else None
    return triton.autotune(options, key=key, restore_value=again)(kernel)


@dataclass(frozen=True)
class _Call:
    """Arguments that all kernels of a call share."""

    E: Numbers
    D: int
    rows: int
    chunk: int
    mask: Tensor | None
    cu: Tensor | None
    device: torch.device

    def tuned(
        self, name: str, programs: int, *args: Any, lent: bool = False, **options: Any
    ) -> None:
        if INTERPRETED:
            config, *_ = choices(self.E.terms, self.E.wide, self.E.decays)
            return self.fixed(name, config, (programs,), *args, **options)
        if programs:
            with _on(self.device):
                grid = lambda meta: (programs, triton.cdiv(self.D, meta["BLOCK"]))  # noqa: E731
                constants = dict(E=self.E, CHUNK=self.chunk, **options, **COMPILED)
                with LOCK:
                    _tuned(name, self.E, _warp(self.device), lent)[grid](*args, **constants)
        return None

    def fixed(self, name: str, config: Config, grid: Any, *args: Any, **options: Any) -> None:
        if not grid[0]:
            return
        sizes = settings(config, _warp(self.device))
        grid = (grid[0], triton.cdiv(self.D, sizes["BLOCK"]), *grid[1:])
        if name == "step":
            del sizes["TILE"]
        else:
            options["CHUNK"] = self.chunk
        with _on(self.device):
            constants = dict(E=self.E, **sizes, **options, **COMPILED)
            KERNELS[name][grid](*args, num_warps=config.warps, **constants)

    def slots(self, x: Tensor) -> int:
        return configs.slots(x, self.cu, self.chunk)

    def layout(self, x: Tensor) -> tuple[Any, ...]:
        """Return the mask, the offsets, and the sequence of each chunk."""
        if self.cu is None:
            return self.mask, None, None
        return self.mask, self.cu, configs.row_of_slot(self.cu, self.chunk, self.slots(x))

    def sums(self, count: int, like: Tensor) -> Tensor:
        """Allocate sums [count, 2 N + 1, D]; zeros if packed, as some slots are never written."""
        fresh = torch.empty if self.cu is None else torch.zeros
        shape = (count, 2 * self.E.terms + 1, self.D)
        return fresh(shape, dtype=like.dtype, device=like.device)

    def g_sums(self, count: int, like: Tensor) -> Tensor | None:
        """Allocate the log decays of chunks [count, D]; None without decay."""
        return like.new_empty(count, self.D) if self.E.decays else None


def _on(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _call(inputs: Inputs, expansion: Expansion) -> _Call:
    B, Lq, D = inputs.q.shape
    cu, real, mask = inputs.cu_seqlens, inputs.sum_dtype, dense(inputs.key_mask, torch.bool)
    return _Call(
        E=numbers(expansion, real, REAL[real], inputs.log_decay is not None),
        D=D,
        rows=inputs.rows,
        chunk=configs.chunk_length(B, max(Lq, inputs.k.shape[1]), D),
        mask=None if mask is None else mask.view(torch.uint8),
        cu=None if cu is None else cu.contiguous(),
        device=inputs.q.device,
    )


def _strided(*tensors: Tensor) -> list[Any]:
    return [x for tensor in tensors for x in (tensor, *tensor.stride())]


def _decays(inputs: Inputs) -> list[Any]:
    """Return the log decay as a tensor with the shape of k and its strides."""
    g = inputs.log_decay
    return [None] * 4 if g is None else _strided(g.expand(inputs.k.shape))


def forward(inputs: Inputs, *, expansion: Expansion, causal: bool, save: bool) -> Outputs:
    """Return y, the final s, z, shift, and with `save` the prefix sums that `backward` needs."""
    q, k, v = inputs[:3]
    (_, Lq, D), L, real = q.shape, k.shape[1], inputs.sum_dtype
    call = _call(inputs, expansion)
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    s1, z1 = (empty_sums(call.rows, D, expansion, real, q.device) for _ in range(2))
    m1 = torch.empty((call.rows, D), dtype=real, device=q.device)
    before = *(kernel_sums(x, expansion, real) for x in inputs[5:7]), dense(inputs.shift, real)
    after, decays = (s1, z1, m1), _decays(inputs)
    if causal and L == 1 and not save and call.mask is None and call.cu is None:
        token = (x for t in (q, k, v) for x in (t, t.stride(0), t.stride(2)))
        g, g_b, _, g_d = decays
        args = (*token, g, g_b, g_d, *before, *after, y, D)
        call.fixed("step", WIDE if expansion.wide else STEP, (call.rows,), *args)
        return y, *after, None
    saved = call.sums(call.slots(k), m1) if save and causal else None
    if configs.is_fused(call.rows, Lq, L, D, expansion):
        args = (call.mask, call.cu, *before, *after, saved, y, Lq, L, D)
        args = (*_strided(q, k, v), *decays, *args)
        call.tuned("fused", call.rows, *args, CAUSAL=causal)
        return y, *after, saved
    sums, g_sum = call.sums(call.slots(k), m1), call.g_sums(call.slots(k), m1)
    prefix = None
    if causal:
        prefix = call.sums(call.slots(k), m1) if saved is None else saved
    args = (*_strided(k, v), *decays, *call.layout(k), sums, g_sum, L, D)
    call.tuned("states", call.slots(k), *args)
    args = (sums, g_sum, prefix, call.cu, *before, *after, L, D)
    call.fixed("merge", MERGE, (call.rows, expansion.terms), *args)
    args = (*_strided(q, k, v), *decays, *call.layout(q), prefix, *after, y, Lq, D)
    call.tuned("outputs", call.slots(q), *args, CAUSAL=causal)
    return y, *after, saved


def backward(
    gy: Tensor,
    gs: Tensor | None,
    gz: Tensor | None,
    inputs: Inputs,
    final: Sums,
    saved: Tensor,
    *,
    expansion: Expansion,
    causal: bool,
) -> Gradients:
    """Return the gradients of q, k, v, the initial s, z (None without a state) and log_decay."""
    q, k, v = inputs[:3]
    (_, Lq, D), L = q.shape, k.shape[1]
    real, rows = final[0].dtype, final[0].shape[0]
    call, decays = _call(inputs, expansion), _decays(inputs)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, k))
    ds = dz = None
    if inputs.s is not None:
        ds, dz = (empty_sums(rows, D, expansion, real, q.device) for _ in range(2))
    cotangents = tuple(kernel_sums(x, expansion, real) for x in (gs, gz))
    s1, z1 = (kernel_sums(x, expansion, real) for x in final[:2])
    m1 = dense(final[2], real)
    a, y, m = _adjoints(dk, dv, real, causal)
    sums, g_sum = call.sums(call.slots(q), final[2]), call.g_sums(call.slots(q), final[2])
    # Reverse sums after each chunk; if not causal, the same for all chunks of a sequence.
    follows = call.sums(call.slots(k) if causal else rows, final[2])

    args = (*call.layout(q), saved, s1, z1, m1, dq, a, y, m, sums, g_sum, Lq, D)
    args = (*_strided(q, k, v, gy), *decays, *args)
    call.tuned("query_gradients", call.slots(q), *args, CAUSAL=causal)
    suffix, total = (follows, None) if causal else (None, follows)
    m0 = dense(inputs.shift, real)
    args = (sums, g_sum, suffix, call.cu, *cotangents, m1, m0, ds, dz, total, Lq, D)
    call.fixed("merge_back", MERGE, (rows, expansion.terms), *args)
    ends = (saved, s1, z1) if call.E.decays else (None,) * 3
    dg = dg_sum = None
    if inputs.log_decay is not None:
        if inputs.log_decay.dim() == 3:
            dg = torch.empty(k.shape, dtype=real, device=k.device)
        else:
            dg_sum = torch.empty((call.slots(k), D), dtype=real, device=k.device)
    args = (*call.layout(k), follows, *ends, a, y, m, dk, dv, dg, dg_sum, L, D)
    args = (*_strided(q, k, v), *decays, *args)
    call.tuned("key_gradients", call.slots(k), *args, lent=causal and a is dv, CAUSAL=causal)
    return dq, dk, dv, ds, dz, dg if dg_sum is None else dg_sum.sum(0)


def _adjoints(dk: Tensor, dv: Tensor, real: torch.dtype, causal: bool) -> tuple[Tensor, ...]:
    """Return memory for a, y and m of every token, which the backward's first walk writes.

    To save memory, dv and dk hold a and y until they are overwritten, if their dtype allows it.
    """
    if not causal:
        return dv, dk, dk  # unused
    m = torch.empty(dk.shape, dtype=real, device=dk.device)
    return (dv, dk, m) if dk.dtype == real else (torch.empty_like(m), torch.empty_like(m), m)
