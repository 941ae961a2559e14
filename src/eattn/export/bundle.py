"""Write an exported model to a folder: graphs, their description, and an example script."""

import json
import math
import os
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eattn._checks import need
from eattn._io import replace_directory
from eattn.export import metadata
from eattn.export.graph import NEXT, Graph, Port
from eattn.timeseries import store

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
TEMPLATES = Path(__file__).with_name("templates")
ABOUT, EXAMPLE, GRAPHS = "export.json", "example.py", "graphs.py"
FILES = (
    ABOUT,
    EXAMPLE,
    GRAPHS,
    metadata.TOKENIZER,
    metadata.SPELLING,
    "__pycache__",  # exists once the example has run
    *(n + ending for n in ("sequence", "step") for ending in (".onnx", ".onnx.data", ".pt2")),
)
SIZES = ((1, 1), (2, 7), (3, 130))  # batch and length of each comparison; not the traced ones
STEPS = 24  # consecutive steps of each comparison
TOLERANCE = 1e-4
Runner = Callable[[dict[str, Tensor]], dict[str, Tensor]]  # tensors by name


def save(
    model: Any,
    folder: store.Folder,
    *,
    format: str = "onnx",
    force: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write a folder with everything needed to run a model without eattn.

    Each graph is compared with the model before the folder is written. If a classifier or language
    model has no step, only the sequence is exported. Of a forecaster, only the step is exported,
    which also reads a history.

    Parameters
    ----------
    model : path, fitted estimator or EAForCausalLM
        Model, or the folder of a saved model.
    folder : path
        Folder to write.
    format : {"onnx", "torch"}, default "onnx"
        Format of the graphs.
    force : bool, default False
        Replace an earlier export.
    tell : callable, optional
        Called with a short text before each stage.

    Returns
    -------
    dict
        Content of `export.json`; "without" gives the reason for a missing step.
    """
    import eattn
    from eattn.export import sequence, step

    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            need(package, extra="export")
    store.check_free(folder, force=force, files=FILES, what="an exported model")
    if isinstance(model, str | os.PathLike):
        tell(f"reading {model}")
        model = metadata.load(model)
    about: dict[str, Any] = {
        "eattn": eattn.__version__,
        "format": format,
        **metadata.describe(model),
        "graphs": {},
        "without": {},
    }
    if about["kind"] == "forecaster":
        graphs = [step(model)]
    else:
        graphs = [sequence(model)]
        try:
            graphs.append(step(model))
        except ValueError as error:
            about["without"]["step"] = str(error)
    with replace_directory(folder) as fresh:
        for template, name in (
            (about["kind"].replace(" ", "_"), EXAMPLE),
            (f"graphs_{format}", GRAPHS),
        ):
            shutil.copyfile(TEMPLATES / f"{template}.py", fresh / name)
        if about.get("tokenizer"):
            metadata.write_tokenizer(model, fresh)
        for graph in graphs:
            tell(f"tracing the {graph.name}")
            file = graph.name + FORMATS[format]
            if format == "onnx":
                graph.onnx().save(fresh / file)
            else:
                torch.export.save(graph.torch(), fresh / file)
            about["graphs"][graph.name] = {"file": file} | _describe(graph)
        _write_about(fresh, about)
        for graph in graphs:
            tell(f"checking the {graph.name}")
            difference = _check(graph, _open(fresh, graph.name))
            about["graphs"][graph.name]["difference"] = float(f"{difference:.1e}")
        _write_about(fresh, about)
    return about


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False, default=str)
    (folder / ABOUT).write_text(text + "\n", encoding="utf-8")


def _describe(graph: Graph) -> dict[str, Any]:
    state = {port.name for port in graph.state}
    inputs = {port.name: port for port in (*graph.inputs, *graph.state)}
    return {
        "longest": graph.longest if graph.continues else graph.reach,
        "inputs": [_described(inputs[n]) | {"state": n in state} for n in graph.input_names],
        "outputs": [
            _described(graph.output),
            *(_described(port) | {"name": NEXT + port.name} for port in graph.state),
        ],
    }


def _open(folder: Path, name: str) -> Runner:
    """Open the graph `name` with the exported script."""
    script = runpy.run_path(str(folder / GRAPHS))
    run, array = script["open_graph"](name), script["array"]

    def call(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        given = {
            n: array(x.numpy(), str(x.dtype).removeprefix("torch.")) for n, x in inputs.items()
        }
        return {n: torch.as_tensor(y) for n, y in run(given).items()}

    return call


def _check(graph: Graph, run: Runner) -> float:
    """Return the largest difference between graph and model; raise if it exceeds TOLERANCE."""
    found, steps = [], min(STEPS, graph.reach) if graph.continues else 1
    for B, L in SIZES:
        outputs: dict[str, Tensor] = {}
        for i in range(steps):
            arguments = graph.example(B, L, seed=i)
            if outputs:
                arguments = graph.advanced(arguments, outputs)
            outputs, expected = run(graph.flat(arguments)), graph(*arguments)
            if bool(expected[graph.output.name].isnan().any()):
                raise ValueError(
                    "the model returns NaN, so it cannot be exported; did training diverge?"
                )
            found += [_difference(outputs[name], x) for name, x in expected.items()]
    largest = float(torch.stack(found).max())  # NaN if any is NaN
    if not largest <= TOLERANCE:
        raise RuntimeError(
            f"the exported {graph.name} differs from the model by {largest:.1e}, more than"
            f" {TOLERANCE:g}; please report it"
        )
    return largest


def _difference(found: Tensor, expected: Tensor) -> Tensor:
    """Return the largest error relative to max(1, largest number); equal infinities give 0."""
    found, expected = found.double(), expected.double()
    error = torch.where(found == expected, 0.0, (found - expected).abs())
    size = torch.where(expected.isfinite(), expected.abs(), 0.0).amax().clamp(min=1.0)
    return error.amax() / size


def _described(port: Port) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": port.name,
        "dtype": str(port.dtype).removeprefix("torch."),
        "shape": list(port.shape),
    }
    if port.start is not None:
        described["start"] = port.start if math.isfinite(port.start) else str(port.start)
    return described
