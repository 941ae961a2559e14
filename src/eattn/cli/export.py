"""`eattn export`: write a saved model as graphs that run without eattn."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a saved model.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    format: Annotated[
        str, typer.Option("--format", help="Format of the graphs: onnx or torch.")
    ] = "onnx",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier export.")] = False,
) -> None:
    """Export a model for onnxruntime or torch alone, with a script that runs it.

    MODEL is a classifier, a forecaster or a causal language model. The folder holds a graph of
    whole sequences of any length and, if the state has a fixed size, a graph of a single step.
    export.json describes their inputs and outputs, labels, scales and tokens; example.py runs them.

    Example: eattn export model/ --format onnx --out exported/
    """
    from eattn.export import save

    with Console(stderr=True).status("loading") as status:
        about = save(model, out, format=format, force=force, tell=status.update)
    for name, graph in about["graphs"].items():
        size, off = len(graph["inputs"]), graph["difference"]
        print(f"{out / graph['file']}: {name}, {size} inputs, within {off:.1e} of the model")
    for name, why in about["without"].items():
        print(f"no {name}: {why}")
    print(f"{out / 'export.json'} describes the graphs, {out / 'example.py'} runs them")
