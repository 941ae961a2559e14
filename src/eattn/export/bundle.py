"""An exported model as a folder: graphs, a JSON that tells of them, and a script that runs them."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eattn._io import replace_directory
from eattn.export import examples, metadata
from eattn.export.graph import NEXT, Arguments, Graph, Port, need
from eattn.timeseries import store

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
ABOUT, EXAMPLE = "export.json", "example.py"
NAMES = ("sequence", "step")
FILES = (
    ABOUT,
    EXAMPLE,
    metadata.TOKENIZER,
    metadata.SPELLING,
    *(name + ending for name in NAMES for ending in (".onnx", ".onnx.data", ".pt2")),
)
SIZES = ((1, 1), (2, 7), (3, 130))  # batches and lengths to try: none is the one that is traced
STEPS = 8  # to try, each from the state after the last
TOLERANCE = 1e-4


def save(
    model: Any,
    folder: store.Folder,
    *,
    format: str = "onnx",
    force: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write all that is needed to run a model elsewhere; what export.json says comes back.

    `model` is a folder that was saved, a fitted estimator of `eattn.timeseries`, or an
    `EAForCausalLM`. `format` is "onnx" or "torch". Graphs are compared with the model before any is
    kept. A model whose state grows, or that has no step, is written without one, and `without`
    says why. `force` replaces what was exported there before; `tell` hears of progress.
    """
    import eattn
    from eattn.export import sequence, step

    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format == "onnx":
        need("onnx", "onnxscript", "onnxruntime")
    store.check_free(folder, force=force, files=FILES, what="an exported model")
    if isinstance(model, str | os.PathLike):
        tell(f"reading {model}")
        model = metadata.load(model)
    told: dict[str, Any] = {
        "eattn": eattn.__version__,
        "format": format,
        **metadata.facts_of(model),
        "graphs": {},
        "without": {},
    }
    graphs = [sequence(model)]
    try:
        graphs.append(step(model))
    except ValueError as error:
        told["without"]["step"] = str(error)
    with replace_directory(folder) as fresh:
        for graph in graphs:
            tell(f"tracing the {graph.name}")
            told["graphs"][graph.name] = _write(graph, fresh, format)
        if told.get("tokenizer"):
            metadata.write_tokenizer(model, fresh)
        text = json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False, default=str)
        (fresh / ABOUT).write_text(text + "\n", encoding="utf-8")
        script = examples.script(told["kind"], format, recurrent=len(graphs) > 1)
        (fresh / EXAMPLE).write_text(script, encoding="utf-8")
    return told


def _write(graph: Graph, folder: Path, format: str) -> dict[str, Any]:
    """The file of a graph that was found right, and what is to be known of it."""
    path = folder / (graph.name + FORMATS[format])
    if format == "onnx":
        graph.onnx().save(path)
        run = _onnx_runner(graph, path)
    else:
        torch.export.save(graph.torch(), path)
        run = _torch_runner(graph, path)
    difference = _checked(graph, run)
    state = {port.name for port in graph.state}
    inputs = {port.name: port for port in (*graph.inputs, *graph.state)}
    return {
        "file": path.name,
        "shortest": graph.shortest,
        "longest": graph.longest if graph.continues else graph.reach,
        "difference": float(f"{difference:.1e}"),
        "inputs": [_described(inputs[n]) | {"state": n in state} for n in graph.input_names],
        "outputs": [
            _described(graph.output),
            *(_described(port) | {"name": NEXT + port.name} for port in graph.state),
        ],
    }


Runner = Callable[[Arguments], dict[str, Tensor]]


def _onnx_runner(graph: Graph, path: Path) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)

    def run(arguments: Arguments) -> dict[str, Tensor]:
        found = session.run(graph.output_names, graph.fed(arguments))
        tensors = (torch.from_numpy(x) for x in found)
        return dict(zip(graph.output_names, tensors, strict=True))

    return run


def _torch_runner(graph: Graph, path: Path) -> Runner:
    program = torch.export.load(path).module()
    return lambda arguments: graph.named(program(*arguments))


def _checked(graph: Graph, run: Runner) -> float:
    """The largest difference of what a graph gives from what the model gives; not above 1e-4."""
    found, steps = [], min(STEPS, graph.reach) if graph.continues else 1
    for B, L in SIZES:
        arguments = graph.example(B, L)
        for _ in range(steps):
            outputs, expected = run(arguments), graph(*arguments)
            if bool(expected[graph.output.name].isnan().any()):
                raise ValueError("the model gives NaN, and is not exported: training diverged?")
            found += [_difference(outputs[name], x) for name, x in expected.items()]
            arguments = graph.going_on(arguments, outputs)
    largest = float(torch.stack(found).max())  # NaN, if any is
    if not largest <= TOLERANCE:
        raise RuntimeError(
            f"the exported {graph.name} differs from the model by {largest:.1e}, more than"
            f" {TOLERANCE:g}; please report it"
        )
    return largest


def _difference(found: Tensor, expected: Tensor) -> Tensor:
    """Relative to the largest number, if that is above 1; 0 where both are infinite."""
    found, expected = found.double(), expected.double()
    error = torch.where(found == expected, 0.0, (found - expected).abs())
    size = torch.where(expected.isfinite(), expected.abs(), 0.0).amax().clamp(min=1.0)
    return error.amax() / size


def _described(port: Port) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": port.name,
        "dtype": str(port.dtype).removeprefix("torch."),
        "shape": list(port.shape),
    }
    if port.start is not None:
        told["start"] = port.start if math.isfinite(port.start) else str(port.start)
    return told
