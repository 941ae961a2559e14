"""Fused CPU kernels: the C++ code in native/, called through ctypes.

Memory is O(LD): the forward saves its state every CHECKPOINT tokens, and the backward recomputes
the states in between.
"""

import ctypes
import functools
import struct
from pathlib import Path

import torch
from torch import Tensor

from eattn.ops import grid
from eattn.ops.expansion import Expansion
from eattn.ops.inputs import Gradients, Inputs, Outputs, Sums, dense, kernel_sums
from eattn.ops.state import empty_sums

LIBRARY = Path(__file__).with_name("_native.so")
ABI = 5
CHECKPOINT = 64  # same as kCheckpoint in native/io.h

IO = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}

# The fields of EattnArgs in native/args.h, in the same order. A view is a pointer and three
# strides; a missing tensor is passed as zeros. The radius is the only float.
_VIEWS = ("q", "k", "v", "y", "gy", "dq", "dk", "dv", "g", "dg")
_STATES = ("s0", "z0", "m0", "s1", "z1", "m1", "gs", "gz", "ds", "dz")
_POINTERS = ("key_mask", "cu_seqlens", *_STATES, "saved", "dg_sums")
_NUMBERS = ("B", "Lq", "Lk", "D", "R", "terms", "causal", "io", "threads", "radius")
_NO_STRIDES = (0, 0, 0)
_ARGS = struct.Struct(f"@{4 * len(_VIEWS) + len(_POINTERS) + len(_NUMBERS) - 1}qd")


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """Return the library, or the reason why it cannot be used."""
    if not LIBRARY.exists():
        return None, "the kernels were not compiled when eattn was installed (no C++ compiler?)"
    try:
        library = ctypes.CDLL(str(LIBRARY))
        fits = library.eattn_abi() == ABI and library.eattn_args_size() == _ARGS.size
    except (OSError, AttributeError) as error:
        return None, f"the compiled kernels cannot be loaded: {error}"
    if not fits:
        return None, "the compiled kernels belong to another version of eattn: reinstall eattn"
    library.eattn_isa_name.restype = ctypes.c_char_p
    library.eattn_compiler.restype = ctypes.c_char_p
    for function in (library.eattn_forward, library.eattn_backward):
        function.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
        function.restype = None
    return library, None


def _find_isas() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    while _library and (name := _library.eattn_isa_name(len(found))) is not None:
        runs = _library.eattn_isa_runs(len(found))
        found[name.decode()] = None if runs else f"this CPU has no {name.decode()}"
    return found


_library, _why_not = _load()

# Instruction sets of the kernels, fastest first: None, or the reason why this CPU cannot run them.
ISAS = _find_isas()
_INDEX = {isa: i for i, isa in enumerate(ISAS)}
_USABLE = [isa for isa, why in ISAS.items() if why is None]
_VECTOR_BYTES = {"avx512": 64, "avx2": 32, "baseline": 16}


@functools.cache
def _fastest(D: int, wide: bool) -> str:
    """Return the ISA with the widest vectors that D channels fill by more than half."""
    bytes_of_channels = D * (8 if wide else 4)
    filled = (isa for isa in _USABLE if 2 * bytes_of_channels > _VECTOR_BYTES[isa])
    return next(filled, _USABLE[-1])


def unavailable(isa: str | None = None) -> str | None:
    """Return why the kernels (of one ISA, or of any) cannot run; None if they can."""
    if _why_not is not None or isa is None:
        return _why_not
    return ISAS.get(isa, f"the kernels were not built for {isa}")


def describe() -> str:
    """Return a one-line description of the compiled library, for `eattn info`."""
    if _library is None:
        return str(_why_not)
    threads = "OpenMP" if _library.eattn_openmp() else "one thread: built without OpenMP"
    usable = ", ".join(isa for isa, why in ISAS.items() if why is None)
    return f"{usable}; {threads}; compiler {_library.eattn_compiler().decode()}"


def saved_shape(q: Tensor, cu_seqlens: Tensor | None, expansion: Expansion) -> tuple[int, ...]:
    """Return the shape [slots, 2N + 1, D] of the checkpoints that a causal forward saves.

    For a wide grid it saves three numbers per query instead, as `grid` does.
    """
    if expansion.wide:
        return grid.saved_shape(q)
    return _slots(q, cu_seqlens), 2 * expansion.terms + 1, q.shape[2]


def _slots(q: Tensor, cu_seqlens: Tensor | None) -> int:
    """Return the number of checkpoints; packed sequences do not use all of them."""
    B, L, _ = q.shape
    if cu_seqlens is None:
        return B * ((L + CHECKPOINT - 1) // CHECKPOINT)
    return L // CHECKPOINT + cu_seqlens.shape[0]


def _call(
    function: str,
    inputs: Inputs,
    tensors: dict[str, Tensor | None],
    rows: int,
    real: torch.dtype,
    expansion: Expansion,
    causal: bool,
    isa: str | None,
) -> None:
    """Call a kernel on `inputs` and on tensors named like the fields of the struct."""
    if _library is None:
        raise RuntimeError(_why_not)
    q, k, v, key_mask, cu_seqlens, *_ = inputs
    (B, Lq, D), Lk, wide = q.shape, k.shape[1], real == torch.float64
    tensors["q"], tensors["k"], tensors["v"] = q, k, v
    if inputs.log_decay is not None:
        tensors["g"] = inputs.log_decay.expand(k.shape)
    if key_mask is not None:
        tensors["key_mask"] = dense(key_mask, torch.bool)
    if cu_seqlens is not None:
        tensors["cu_seqlens"] = dense(cu_seqlens, torch.int64)
    fields: list[float] = []
    for name in _VIEWS:
        x = tensors.get(name)
        fields.append(0 if x is None else x.data_ptr())
        fields += _NO_STRIDES if x is None else x.stride()
    for name in _POINTERS:
        x = tensors.get(name)
        fields.append(0 if x is None else x.data_ptr())
    fields += (B, Lq, Lk, D, rows)
    fields += (expansion.terms, causal, IO[q.dtype], torch.get_num_threads(), expansion.radius)
    index = _INDEX[isa or _fastest(D, wide)]
    getattr(_library, function)(_ARGS.pack(*fields), index, wide)


def forward(
    inputs: Inputs, *, expansion: Expansion, causal: bool, save: bool, isa: str | None = None
) -> Outputs:
    """Return y, the final s, z, shift, and with `save` the checkpoints that `backward` needs."""
    q, D, rows, real = inputs.q, inputs.q.shape[2], inputs.rows, inputs.sum_dtype
    y = torch.empty(q.shape, dtype=q.dtype)
    s1 = empty_sums(rows, D, expansion, real, None)
    z1 = empty_sums(rows, D, expansion, real, None)
    m1 = torch.empty((rows, D), dtype=real)
    saved = None
    if save and causal:
        # Packed sequences do not use all slots, and no output may hold uninitialised memory.
        fresh = torch.empty if inputs.cu_seqlens is None else torch.zeros
        saved = fresh(saved_shape(q, inputs.cu_seqlens, expansion), dtype=real)
    tensors = {"y": y, "s1": s1, "z1": z1, "m1": m1, "saved": saved}
    if inputs.s is not None:
        tensors["s0"] = kernel_sums(inputs.s, expansion, real)
        tensors["z0"] = kernel_sums(inputs.z, expansion, real)
        tensors["m0"] = dense(inputs.shift, real)
    _call("eattn_forward", inputs, tensors, rows, real, expansion, causal, isa)
    return y, s1, z1, m1, saved


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
    isa: str | None = None,
) -> Gradients:
    """Return the gradients of q, k, v and of the initial s, z (None without a state)."""
    (rows, D, _), real = final[0].shape, final[0].dtype
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in inputs[:3])
    ds = dz = None
    if inputs.s is not None:
        ds, dz = (empty_sums(rows, D, expansion, real, None) for _ in range(2))
    tensors: dict[str, Tensor | None] = dict(gy=gy, dq=dq, dk=dk, dv=dv, ds=ds, dz=dz, saved=saved)
    for name, x in {"gs": gs, "gz": gz, "s1": final[0], "z1": final[1]}.items():
        tensors[name] = kernel_sums(x, expansion, real)
    tensors["m1"], tensors["m0"] = dense(final[2], real), dense(inputs.shift, real)
    if expansion.wide and inputs.log_decay is not None:
        tensors["s0"] = kernel_sums(inputs.s, expansion, real)
        tensors["z0"] = kernel_sums(inputs.z, expansion, real)
    if inputs.log_decay is not None and inputs.log_decay.dim() == 1:
        slots = _slots(inputs.q, inputs.cu_seqlens)
        tensors["dg_sums"] = torch.zeros(slots, D, dtype=real)
    elif inputs.log_decay is not None:
        tensors["dg"] = torch.empty(inputs.k.shape, dtype=real)
    _call("eattn_backward", inputs, tensors, rows, real, expansion, causal, isa)
    sums = tensors.get("dg_sums")
    return dq, dk, dv, ds, dz, tensors.get("dg") if sums is None else sums.sum(0)
