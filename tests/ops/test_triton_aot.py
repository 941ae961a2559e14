"""Ahead-of-time compilation of the Triton kernels, without a GPU: they compile and do not spill.

This shows that the kernels fit in a GPU's registers, not that they are correct or fast.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from op_helpers import make
from torch.utils._python_dispatch import TorchDispatchMode

from eattn import Quadrature, State, Taylor
from eattn.ops import Expansion, triton
from eattn.ops.inputs import Inputs
from eattn.ops.triton import configs
from eattn.ops.triton.configs import FUSED_TERMS, LONGEST, MERGE, STEP, WIDE, Config, choices
from eattn.ops.triton.constants import numbers

pytestmark = [
    pytest.mark.skipif(triton.unavailable() is not None, reason=str(triton.unavailable())),
    pytest.mark.skipif(triton.INTERPRETED, reason="interpreted kernels are not compiled"),
]

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
targets = pytest.mark.parametrize("target", TARGETS)
both = pytest.mark.parametrize("decays", [False, True], ids=["", "decay"])
TUNED = ["states", "outputs", "fused", "query_gradients", "key_gradients"]
FIXED = {"merge": MERGE, "merge_back": MERGE, "step": STEP}
# All expansions: a kernel may spill with few terms even if it does not with many.
EXPANSIONS = [*map(Taylor, range(0, 17, 2)), *map(Quadrature, range(5, 34, 2))]
WIDE_GRIDS = [Quadrature(15, 7), Quadrature(25, 12), Quadrature(33, 16), Quadrature(65)]
# The expansions with the most terms for each list of configurations.
MOST = [Taylor(8), Quadrature(9), Taylor(12), Quadrature(13), Taylor(16), Quadrature(33)]
MOST += [Quadrature(33, 16), Quadrature(65)]
ONE_FORM = {"states", "merge", "step"}  # kernels without an argument CAUSAL
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

INPUTS = {"q_ptr", "k_ptr", "v_ptr", "gy_ptr", "dq_ptr", "dk_ptr", "dv_ptr"}
INDICES = {"mask_ptr": "*u8", "cu_ptr": "*i32", "row_ptr": "*i32"}
# Arguments that a plain call does not have.
ABSENT = {*INDICES, "s0_ptr", "z0_ptr", "m0_ptr", "gs_ptr", "gz_ptr", "ds_ptr", "dz_ptr"}
# Arguments that only a call with decay has.
DECAY = {"g_ptr", "g_b", "g_l", "g_d", "g_sum_ptr", "dg_ptr", "dg_sum_ptr"}
ENDS = {"prefix_ptr", "s1_ptr", "z1_ptr"}  # of key_gradients


def every_config(name: str, expansion: Expansion, decays: bool = False) -> tuple[Config, ...]:
    """Return the configurations that a call may launch the kernel with."""
    if name in FIXED:
        return (WIDE,) if name == "step" and expansion.wide else (FIXED[name],)
    return choices(expansion.terms, expansion.wide, decays)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(
    name: str,
    target: str,
    config: Config,
    expansion: Expansion,
    *,
    causal: bool = True,
    dtype: torch.dtype = torch.float32,
    everything: bool = True,
    decays: bool = False,
    real: torch.dtype = torch.float32,
):
    """Compile a kernel as a call would, with mask, offsets and states, or with none of them."""
    from triton import compile as compile_
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from eattn.ops.triton.launch import COMPILED, KERNELS, REAL, settings

    kernel = KERNELS[name]
    constants = {
        "E": numbers(expansion, real, REAL[real], decays),
        "CAUSAL": causal,
        "CHUNK": LONGEST,
        **settings(config, TARGETS[target][2]),
    }
    absent = set() if everything else set(ABSENT)
    if decays:  # per token, or constant
        absent.add("dg_sum_ptr" if everything else "dg_ptr")
    else:
        absent |= DECAY | (ENDS if name == "key_gradients" else set())
    if name == "merge_back":
        absent.add("total_ptr" if causal else "prefix_ptr")
    wide = "fp64" if real == torch.float64 else "fp32"
    signature, values, attrs = {}, {}, {}
    for place, argument in enumerate(kernel.arg_names):
        if argument.endswith("_d") and argument not in absent:  # channels are usually adjacent
            constants[argument] = 1
        if argument in constants or argument in absent:
            signature[argument] = "constexpr"
            values[argument] = constants.get(argument)
            continue
        is_input = argument in INPUTS or (argument == "y_ptr" and "gradients" not in name)
        if is_input:
            signature[argument] = "*" + (wide if real == torch.float64 else DTYPES[dtype])
        elif argument.endswith("_ptr"):
            signature[argument] = INDICES.get(argument, "*" + wide)
        else:
            signature[argument] = "i32"
        if argument not in ("L", "Lq"):
            attrs[(place,)] = [["tt.divisibility", 16]]
        if argument.endswith("_ptr") and TARGETS[target][0] == "hip":  # tensors below 2 GiB
            attrs[(place,)].append(["tt.pointer_range", 32])
    source = ASTSource(kernel, signature, values, attrs)
    options = dict(num_warps=config.warps, **COMPILED)
    return compile_(source, target=GPUTarget(*TARGETS[target]), options=options)


def usage(binary, target: str, folder: Path) -> dict[str, int]:
    """Return the number of registers and the bytes that were spilled to memory."""
    if TARGETS[target][0] == "hip":
        text = binary.asm["amdgcn"]
        # Scalars that do not fit are kept in lanes of vector registers, not in memory.
        names = ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size")
        return {name: int(re.search(rf"\.{name}:\s*(\d+)", text).group(1)) for name in names}
    import triton as package

    file = folder / "kernel.cubin"
    file.write_bytes(binary.asm["cubin"])
    tool = Path(package.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    done = subprocess.run(
        [tool, "-res-usage", file], capture_output=True, text=True, check=True
    ).stdout
    names = ("REG", "STACK", "LOCAL")
    return {name: int(re.search(rf"{name}:(\d+)", done).group(1)) for name in names}


def assert_fits(binary, target: str, folder: Path) -> None:
    used = usage(binary, target, folder)
    registers = used.pop("REG", None) or used.pop("vgpr_count")
    assert registers <= (512 if TARGETS[target][0] == "hip" else 255)
    assert not any(used.values()), f"{registers} registers and {used}"


# All kernels for one GPU, and the most complex one, with decay, for the others.
CHOSEN = [(name, "sm_90", False) for name in (*TUNED, *FIXED)]
CHOSEN += [("fused", target, True) for target in TARGETS if target != "sm_90"]
CHOSEN += [("key_gradients", "sm_90", True)]


@pytest.mark.parametrize(("name", "target", "decays"), CHOSEN)
def test_usual_call_compiles_without_spilling(name, target, decays, tmp_path):
    config = every_config(name, Taylor(6), decays)[-1]
    assert_fits(compiled(name, target, config, Taylor(6), decays=decays), target, tmp_path)


@pytest.mark.parametrize("name", ["outputs", "step", "query_gradients", "key_gradients"])
def test_largest_wide_grid_compiles_without_spilling(name, tmp_path):
    (config,) = every_config(name, Quadrature(65))
    assert_fits(compiled(name, "sm_90", config, Quadrature(65)), "sm_90", tmp_path)


FORMS = {"full": (False, False), "causal": (True, False), "decay": (True, True)}
CALLED = [
    pytest.param(name, expansion, *FORMS[form], target, id=f"{name}-{expansion}-{form}-{target}")
    for expansion in EXPANSIONS + WIDE_GRIDS
    for name in (*TUNED, *FIXED)
    for form in (["causal", "decay"] if name in ONE_FORM else FORMS)
    for target in TARGETS
    if name != "fused" or (expansion.terms <= FUSED_TERMS and not expansion.wide)
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "expansion", "causal", "decays", "target"), CALLED)
def test_no_configuration_spills(name, expansion, causal, decays, target, tmp_path):
    for config in every_config(name, expansion, decays):
        binary = compiled(name, target, config, expansion, causal=causal, decays=decays)
        assert_fits(binary, target, tmp_path)


@pytest.mark.full
@targets
@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", [*TUNED, *FIXED])
def test_plain_half_precision_call_does_not_spill(name, dtype, decays, target, tmp_path):
    config = every_config(name, Taylor(6), decays)[0]
    options = dict(dtype=dtype, everything=False, decays=decays)
    assert_fits(compiled(name, target, config, Taylor(6), **options), target, tmp_path)


@pytest.mark.full
@targets
@both
@pytest.mark.parametrize("expansion", MOST, ids=str)
@pytest.mark.parametrize("name", ["query_gradients", "key_gradients"])
def test_half_precision_gradients_do_not_spill(name, expansion, decays, target, tmp_path):
    """Gradients need the most registers."""
    for config in every_config(name, expansion, decays):
        binary = compiled(name, target, config, expansion, dtype=torch.bfloat16, decays=decays)
        assert_fits(binary, target, tmp_path)


@pytest.mark.full
@targets
@both
@pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(17)], ids=str)
@pytest.mark.parametrize("name", [*TUNED, *FIXED])
def test_float64_compiles(name, expansion, decays, target):
    """Spilling is allowed: float64 is for accuracy, not for speed."""
    config = every_config(name, expansion, decays)[0]
    assert compiled(name, target, config, expansion, real=torch.float64, decays=decays).asm


class Driver:
    """Stand-in for Triton's driver; the benchmarker runs each function once."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*TARGETS["sm_90"])

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_benchmarker(self):
        def once(call, **options):
            call()
            return [1.0, 1.0, 1.0]

        return once


@pytest.fixture
def compiling(monkeypatch):
    """Compile each launch of the backend without running it; yield the names of the kernels."""
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from eattn.ops.triton import launch

    names = []
    run = JITFunction.run

    def compile_only(kernel, *args, grid, warmup, **options):
        names.append(kernel.fn.__name__)
        programs = grid(options) if callable(grid) else grid
        assert min(programs) > 0
        return run(kernel, *args, grid=grid, warmup=True, **options)

    few = (Config(1, 1), Config(2, 1))  # two are enough for the autotuner, and quick to compile
    monkeypatch.setattr(configs, "CHOICES", {33: few})
    monkeypatch.setattr(configs, "DECAY_CHOICES", {33: few})
    monkeypatch.setattr(launch, "MERGE", Config(1, 1))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    held = "_active" if "_active" in vars(driver) else "active"  # "active" in Triton 3.4
    monkeypatch.setattr(driver, held, Driver())
    _forget(launch)
    yield names
    _forget(launch)  # so that a real GPU does not use kernels compiled for the stand-in


def _forget(launch):
    launch._tuned.cache_clear()
    launch._warp.cache_clear()
    for kernel in launch.KERNELS.values():
        kernel.device_caches.clear()


class Seen(TorchDispatchMode):
    """Records the names of all operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.names.add(op.name().removeprefix("aten::"))
        return op(*args, **(kwargs or {}))


# Operators that wait for the GPU.
WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim"}


# Shapes are [B, L, D]; a size of 1 is a constant for the compiler.
@pytest.mark.parametrize(
    ("shape", "with_", "causal", "expansion", "kernels"),
    [
        ((1, 1, 1), "", True, Taylor(2), {"fused"}),
        ((1, 70, 1), "packed mask state", True, Taylor(2), {"states", "merge", "outputs"}),
        ((2, 70, 16), "mask state", False, Taylor(2), {"states", "merge", "outputs"}),
        ((2, 70, 16), "gate state", True, Quadrature(25, 12), {"states", "merge", "outputs"}),
    ],
)
def test_launches_compile_with_their_actual_arguments(
    compiling, shape, with_, causal, expansion, kernels
):
    from eattn.ops.triton import launch

    case = make(shape, expansion=expansion, causal=causal, with_=with_).to(torch.float32)
    state = (None,) * 3 if case.state is None else case.state.tensors().values()
    tensors = case.q, case.k, case.v, case.key_mask, case.cu_seqlens
    given = Inputs(*tensors, *state, case.log_decay)
    options = dict(expansion=case.expansion, causal=causal)
    real = torch.float32, launch.REAL[torch.float32]
    E = numbers(expansion, *real, case.log_decay is not None)  # cached; created on the CPU
    with Seen() as seen:
        y, *final, saved = launch.forward(given, **options, save=True)
        launch.backward(y, *final[:2], given, final, saved, **options)
    assert set(compiling) == kernels | {"query_gradients", "merge_back", "key_gradients"}
    assert not seen.names & WAITS
    if with_ and not expansion.wide:
        # Triton can store choices in a file (TRITON_CACHE_AUTOTUNING=1) if keys are plain values.
        (key,) = launch._tuned("key_gradients", E, 32, causal).cache
        assert json.loads(json.dumps(key)) == list(key)


@pytest.mark.parametrize("decay", ["", "decay"])
def test_step_is_one_launch_without_sync(compiling, decay):
    """A CUDA graph can hold a step: apart from the launch it only allocates memory."""
    from eattn.ops.triton import launch

    case = make((2, 1, 5), expansion=Taylor(6), causal=True, with_=decay).to(torch.bfloat16)
    state = State.zeros(2, 5, order=6).tensors().values()
    given = Inputs(case.q, case.k, case.v, None, None, *state, case.log_decay)
    numbers(Taylor(6), torch.float32, launch.REAL[torch.float32], decay != "")
    with Seen() as seen:
        launch.forward(given, expansion=Taylor(6), causal=True, save=False)
    assert compiling == ["step"]
    assert seen.names - {"expand"} == {"empty.memory_format", "transpose.int"}
