"""A graph to export: a module with the names, types and shapes of its inputs and outputs.

A state goes in and comes out as named tensors. In ONNX the output of the input `layer0.s` is
called `next.layer0.s`, since names there are unique; in torch both states are a dict.
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

BATCH, LENGTH = "B", "L"  # axes of any size
NEXT = "next."
LONGEST = 2**20  # tokens; a traced length needs an upper bound
EXAMPLE = {BATCH: 3, LENGTH: 11}  # traced; torch.export treats 0 and 1 as constants
EXTRA = 'pip install "eattn[export]"'
Arguments = list[Any]  # tensors, and a state as a dict


@dataclass(frozen=True)
class Port:
    """An input or output of a graph."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]  # "B" and "L" are free
    start: float | None = None  # value of all elements of a state before the first token
    between: tuple[int, int] = (0, 1)  # smallest and largest integer of an example

    def example(self, sizes: dict[str, int], rng: torch.Generator) -> Tensor:
        """Return a new tensor; torch.export takes the same tensor given twice for one input."""
        shape = tuple(sizes[n] if isinstance(n, str) else n for n in self.shape)
        if self.start is not None:
            return torch.full(shape, self.start, dtype=self.dtype)
        if self.dtype.is_floating_point:
            return torch.randn(shape, dtype=self.dtype, generator=rng)
        least, most = self.between
        return torch.randint(least, most + 1, shape, generator=rng).to(self.dtype)


@dataclass(frozen=True, eq=False)
class Graph:
    """A model ready to be traced by `torch` or `onnx`, as `sequence` and `step` return it.

    The module takes the first input, the state as a dict if it `continues` one, and the other
    inputs. It returns the output, and the state after it if there is one.
    """

    name: str
    module: nn.Module
    inputs: tuple[Port, ...]
    output: Port
    state: tuple[Port, ...] = ()
    continues: bool = False
    shortest: int = 1  # tokens; shorter sequences must be padded
    longest: int | None = None  # tokens of a sequence or of all steps together; None: no limit

    @property
    def reach(self) -> int:
        """Largest length of a sequence that is read at once."""
        return LONGEST if self.longest is None else self.longest

    @property
    def input_names(self) -> list[str]:
        """Names of the ONNX inputs, in the order of the arguments."""
        first, *others = (port.name for port in self.inputs)
        state = [port.name for port in self.state if self.continues]
        return [first, *state, *others]

    @property
    def output_names(self) -> list[str]:
        """Names of the ONNX outputs."""
        return [self.output.name] + [NEXT + port.name for port in self.state]

    def empty(self, batch: int = 1) -> dict[str, Tensor]:
        """Return the state before the first token."""
        rng = torch.Generator()
        return {port.name: port.example({BATCH: batch}, rng) for port in self.state}

    def example(self, batch: int | None = None, length: int | None = None) -> Arguments:
        """Return arguments of these sizes, by default the traced ones; the same on every call."""
        length = min(max(length or EXAMPLE[LENGTH], self.shortest), self.reach)
        sizes = {BATCH: batch or EXAMPLE[BATCH], LENGTH: length}
        rng = torch.Generator().manual_seed(0)
        given = [port.example(sizes, rng) for port in self.inputs]
        return self._placed(given, self.empty(sizes[BATCH]))

    def _placed(self, given: Arguments, state: dict[str, Any]) -> Arguments:
        return [given[0], state, *given[1:]] if self.continues else given

    def torch(self) -> ExportedProgram:
        """Trace the graph with torch.export, for any batch and length."""
        if not hasattr(torch.compiler, "is_exporting"):
            raise RuntimeError(f"export needs torch >= 2.7, got {torch.__version__}")
        longest = self.reach
        if longest <= self.shortest:
            least = self.shortest + 1
            raise ValueError(
                f"max_len must be at least {least} to export any length, got {longest}"
            )
        dims = {BATCH: Dim("batch"), LENGTH: Dim("length", min=self.shortest, max=longest)}

        def free(port: Port) -> dict[int, Any]:
            return {axis: dims[n] for axis, n in enumerate(port.shape) if isinstance(n, str)}

        inputs, state = map(free, self.inputs), {port.name: free(port) for port in self.state}
        with torch.no_grad(), _quiet():
            program = torch.export.export(
                self.module,
                tuple(self.example()),
                dynamic_shapes=tuple(self._placed([*inputs], state)),
                strict=False,
            )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # most of a file's bytes, with local paths
        return program

    def onnx(self, program: ExportedProgram | None = None) -> Any:
        """Convert the graph to a `torch.onnx.ONNXProgram`, whose `save` writes a file.

        `program` is the result of `torch()`; by default the graph is traced again.
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
        ClearMetadataAndDocStringPass()(made.model)  # names source files
        return made

    def __call__(self, *arguments: Any) -> dict[str, Tensor]:
        """Run the model itself; return its outputs by name."""
        with torch.no_grad():
            return self.named(self.module(*arguments))

    def named(self, result: Any) -> dict[str, Tensor]:
        """Return the result of the module or its program by output name."""
        y, state = result if self.state else (result, {})
        return {self.output.name: y} | {NEXT + name: x for name, x in state.items()}

    def advanced(self, arguments: Arguments, outputs: dict[str, Tensor]) -> Arguments:
        """Return the arguments with the state replaced by the one among the outputs."""
        state = {port.name: outputs[NEXT + port.name] for port in self.state}
        return [state if isinstance(x, dict) else x for x in arguments]

    def flat(self, arguments: Arguments) -> dict[str, Tensor]:
        """Return all tensors of the arguments by name."""
        groups = (list(x.values()) if isinstance(x, dict) else [x] for x in arguments)
        return dict(zip(self.input_names, (x for group in groups for x in group), strict=True))


def need(*packages: str) -> None:
    """Raise unless these packages are installed."""
    for name in packages:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"ONNX needs the package {name}: {EXTRA}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters: deprecations inside torch, hints about other packages."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
