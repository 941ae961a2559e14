"""A graph to export: a module, what it takes and what it gives, by name.

A state goes in and comes out tensor by tensor. In ONNX what comes out is called `next.layer0.s`
where `layer0.s` went in, as no two tensors there may have one name; in torch both are a dict.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

BATCH, LENGTH = "B", "L"  # sizes that are free
NEXT = "next."
LONGEST = 2**20  # tokens of a sequence: a graph must reach over all of them
EXAMPLE = {BATCH: 3, LENGTH: 11}  # not 0 or 1, which torch.export takes for constants
EXTRA = 'pip install "eattn[export]"'
Arguments = list[Any]  # tensors, and a state as a dict


@dataclass(frozen=True)
class Port:
    """A tensor that goes in or comes out. `start` is all that a state holds before any token."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    start: float | None = None
    between: tuple[int, int] = (0, 1)  # of integers to try

    def sized(self, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(sizes[n] if isinstance(n, str) else n for n in self.shape)

    def example(self, sizes: dict[str, int], rng: torch.Generator) -> Tensor:
        """In memory of its own: a tensor that is given twice is one input for torch.export."""
        shape = self.sized(sizes)
        if self.start is not None:
            return torch.full(shape, self.start, dtype=self.dtype)
        if self.dtype.is_floating_point:
            return torch.randn(shape, dtype=self.dtype, generator=rng)
        least, most = self.between
        return torch.randint(least, most + 1, shape, generator=rng).to(self.dtype)


@dataclass(frozen=True, eq=False)
class Graph:
    """What `sequence` and `step` make of a model, for `torch` or `onnx` to trace.

    The module takes the first of `inputs`, then the state as a dict if it `continues` one, then the
    other inputs. It gives the output, with the state after it if there is one.
    """

    name: str
    module: nn.Module
    inputs: tuple[Port, ...]
    output: Port
    state: tuple[Port, ...] = ()
    continues: bool = False
    shortest: int = 1  # tokens; what is shorter is to be padded
    longest: int | None = None  # of all steps together, and of a sequence; None: see `reach`

    @property
    def reach(self) -> int:
        """The longest sequence that can be read at once; steps have no such limit of their own."""
        return LONGEST if self.longest is None else self.longest

    @property
    def input_names(self) -> list[str]:
        """As onnxruntime knows them, in the order of the arguments."""
        first, *others = (port.name for port in self.inputs)
        state = [port.name for port in self.state if self.continues]
        return [first, *state, *others]

    @property
    def output_names(self) -> list[str]:
        return [self.output.name] + [NEXT + port.name for port in self.state]

    def empty(self, batch: int = 1) -> dict[str, Tensor]:
        """The state before the first token."""
        rng = torch.Generator()
        return {port.name: port.example({BATCH: batch}, rng) for port in self.state}

    def example(self, batch: int | None = None, length: int | None = None) -> Arguments:
        """Arguments of these sizes, or of those that are traced; the same every time."""
        sizes = {BATCH: batch or EXAMPLE[BATCH], LENGTH: self.fitting(length or EXAMPLE[LENGTH])}
        rng = torch.Generator().manual_seed(0)
        given = [port.example(sizes, rng) for port in self.inputs]
        return self._placed(given, self.empty(sizes[BATCH]))

    def _placed(self, given: Arguments, state: dict[str, Any]) -> Arguments:
        return [given[0], state, *given[1:]] if self.continues else given

    def fitting(self, length: int) -> int:
        """As near as the graph can read."""
        length = max(length, self.shortest)
        return length if self.longest is None else min(length, self.longest)

    def torch(self) -> ExportedProgram:
        """The graph as torch.export has it, for any batch and length."""
        if not hasattr(torch.compiler, "is_exporting"):
            raise RuntimeError(f"to export needs torch >= 2.7, got {torch.__version__}")
        longest = self.reach
        if longest <= self.shortest:
            least = self.shortest + 1
            raise ValueError(
                f"max_len must be at least {least} to export any length, got {longest}"
            )
        dims = {BATCH: Dim("batch"), LENGTH: Dim("length", min=self.shortest, max=longest)}

        def free(port: Port) -> dict[int, Any]:
            return {axis: dims[n] for axis, n in enumerate(port.shape) if isinstance(n, str)}

        tokens, state = (
            [free(port) for port in self.inputs],
            {port.name: free(port) for port in self.state},
        )
        with torch.no_grad(), _quiet():
            program = torch.export.export(
                self.module,
                tuple(self.example()),
                dynamic_shapes=tuple(self._placed(tokens, state)),
                strict=False,
            )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # most of a file, and it names ours
        return program

    def onnx(self, program: ExportedProgram | None = None) -> Any:
        """The graph as a `torch.onnx.ONNXProgram`, whose `save` writes a file.

        `program` is that of `torch`, where it is there already.
        """
        need("onnx", "onnxscript")
        from onnx_ir.passes.common import ClearMetadataAndDocStringPass

        with torch.no_grad(), _quiet():
            made = torch.onnx.export(
                self.torch() if program is None else program,
                dynamo=True,
                verbose=False,
                input_names=self.input_names,
                output_names=self.output_names,
            )
        assert made is not None
        ClearMetadataAndDocStringPass()(made.model)  # where each operator came from
        return made

    def __call__(self, *arguments: Any) -> dict[str, Tensor]:
        """What the model itself gives, by the names of the outputs."""
        with torch.no_grad():
            return self.named(self.module(*arguments))

    def named(self, result: Any) -> dict[str, Tensor]:
        """What the module or its program returned, by the names of the outputs."""
        y, state = result if self.state else (result, {})
        return {self.output.name: y} | {NEXT + name: x for name, x in state.items()}

    def going_on(self, arguments: Arguments, outputs: dict[str, Tensor]) -> Arguments:
        """The same arguments, but for the state, which is the one after these outputs."""
        state = {port.name: outputs[NEXT + port.name] for port in self.state}
        return [state if isinstance(x, dict) else x for x in arguments]

    def fed(self, arguments: Arguments) -> dict[str, Any]:
        """The same arguments as onnxruntime wants them: arrays by name."""
        groups = (list(x.values()) if isinstance(x, dict) else [x] for x in arguments)
        flat = (x for group in groups for x in group)
        return {n: x.numpy() for n, x in zip(self.input_names, flat, strict=True)}


def need(*packages: str) -> None:
    """That these are installed."""
    for name in packages:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"ONNX needs the package {name}: {EXTRA}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say of themselves: deprecations inside torch, other packages."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
