"""Graph to export: a module with the names, types and shapes of its inputs and outputs.

A state is passed in and out as named tensors. Names in ONNX are unique, so the output that belongs
to the input `layer0.s` is named `next.layer0.s`. In torch, both states are dicts.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from eattn._checks import need

BATCH, LENGTH = "batch", "length"  # axes of variable size
NEXT = "next."
LONGEST = 2**20  # tokens; tracing needs an upper bound of the length
EXAMPLE = {BATCH: 3, LENGTH: 11}  # traced sizes; torch.export treats 0 and 1 as constants
Arguments = list[Any]  # tensors, and a state as a dict


@dataclass(frozen=True)
class Port:
    """Input or output of a graph.

    Attributes
    ----------
    name : str
        Name of the tensor.
    dtype : torch.dtype
        Type of the elements.
    shape : tuple of int and str
        Sizes; "batch" and "length" are variable.
    start : float, optional
        Initial value of all elements of a state.
    between : tuple of int
        Smallest and largest integer of an example.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    start: float | None = None
    between: tuple[int, int] = (0, 1)

    def example(self, sizes: dict[str, int], rng: torch.Generator) -> Tensor:
        """Return a new tensor: torch.export merges inputs that are the same tensor."""
        shape = tuple(sizes[n] if isinstance(n, str) else n for n in self.shape)
        if self.start is not None:
            return torch.full(shape, self.start, dtype=self.dtype)
        if self.dtype.is_floating_point:
            return torch.randn(shape, dtype=self.dtype, generator=rng)
        least, most = self.between
        return torch.randint(least, most + 1, shape, generator=rng).to(self.dtype)


@dataclass(frozen=True, eq=False)
class Graph:
    """Model that `torch` and `onnx` can trace; returned by `sequence` and `step`.

    The module takes the first input, the state as a dict if `continues`, and the other inputs. It
    returns the output, and the new state if there is one.

    Attributes
    ----------
    name : {"sequence", "step"}
        Name of the graph.
    module : nn.Module
        Module to trace.
    inputs : tuple of Port
        Inputs without the state.
    output : Port
        Output without the state.
    state : tuple of Port
        Tensors of the state; empty if the model has none of fixed size.
    continues : bool
        Whether the state is also an input.
    longest : int, optional
        Largest number of tokens of a sequence, or of all steps together.
    """

    name: str
    module: nn.Module
    inputs: tuple[Port, ...]
    output: Port
    state: tuple[Port, ...] = ()
    continues: bool = False
    longest: int | None = None

    @property
    def reach(self) -> int:
        """Largest length of a sequence that can be traced."""
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

    def example(
        self, batch: int | None = None, length: int | None = None, seed: int = 0
    ) -> Arguments:
        """Return deterministic arguments of these sizes, by default the traced sizes."""
        length = min(length or EXAMPLE[LENGTH], self.reach)
        sizes = {BATCH: batch or EXAMPLE[BATCH], LENGTH: length}
        rng = torch.Generator().manual_seed(seed)
        given = [port.example(sizes, rng) for port in self.inputs]
        return self._placed(given, self.empty(sizes[BATCH]))

    def _placed(self, given: Arguments, state: dict[str, Any]) -> Arguments:
        return [given[0], state, *given[1:]] if self.continues else given

    def _axes(self, names: dict[str, Any]) -> tuple[Any, ...]:
        """Return the variable axes of each argument, in the form that the exporters expect."""

        def free(port: Port) -> dict[int, Any]:
            return {axis: names[n] for axis, n in enumerate(port.shape) if isinstance(n, str)}

        state = {port.name: free(port) for port in self.state}
        return tuple(self._placed([free(port) for port in self.inputs], state))

    def torch(self) -> ExportedProgram:
        """Trace the graph with torch.export for any batch size and length."""
        if not hasattr(torch.compiler, "is_exporting"):
            raise RuntimeError(f"export needs torch >= 2.7, got {torch.__version__}")
        if self.reach < 2:
            raise ValueError(f"max_len must be at least 2 to export any length, got {self.reach}")
        dims = {BATCH: Dim(BATCH), LENGTH: Dim(LENGTH, min=1, max=self.reach)}
        with torch.no_grad(), _quiet():
            program = torch.export.export(
                self.module,
                tuple(self.example()),
                dynamic_shapes=self._axes(dims),
                strict=False,
            )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # large, and contains local paths
        return program

    def onnx(self, program: ExportedProgram | None = None) -> Any:
        """Convert the graph to ONNX.

        Parameters
        ----------
        program : ExportedProgram, optional
            Result of `torch()`; by default the graph is traced again.

        Returns
        -------
        torch.onnx.ONNXProgram
            Its method `save` writes a file.
        """
        for package in ("onnx", "onnxscript"):
            need(package, extra="export")
        from onnx_ir.passes.common import ClearMetadataAndDocStringPass

        with torch.no_grad(), _quiet():
            made = torch.onnx.export(
                self.torch() if program is None else program,
                dynamo=True,
                verbose=False,
                input_names=self.input_names,
                output_names=self.output_names,
                dynamic_shapes=self._axes({BATCH: BATCH, LENGTH: LENGTH}),
            )
        assert made is not None
        ClearMetadataAndDocStringPass()(made.model)  # contains names of source files
        return made

    def __call__(self, *arguments: Any) -> dict[str, Tensor]:
        """Run the model itself and return its outputs by name."""
        with torch.no_grad():
            return self.named(self.module(*arguments))

    def named(self, result: Any) -> dict[str, Tensor]:
        """Return the result of the module or its program by output name."""
        y, state = result if self.state else (result, {})
        return {self.output.name: y} | {NEXT + name: x for name, x in state.items()}

    def advanced(self, arguments: Arguments, outputs: dict[str, Tensor]) -> Arguments:
        """Return the arguments with the state replaced by the new state in the outputs."""
        state = {port.name: outputs[NEXT + port.name] for port in self.state}
        return [state if isinstance(x, dict) else x for x in arguments]

    def flat(self, arguments: Arguments) -> dict[str, Tensor]:
        """Return all tensors of the arguments by name."""
        groups = (list(x.values()) if isinstance(x, dict) else [x] for x in arguments)
        return dict(zip(self.input_names, (x for group in groups for x in group), strict=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence deprecation warnings and hints of the exporters."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
