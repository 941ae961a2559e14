"""`eattn export`: write a saved model as graphs that run without eattn."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eattn.cli.common import Model


def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    format: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="Format of the graphs: onnx or torch."),
    ] = "onnx",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier export.")] = False,
) -> None:
    """Export a model to ONNX or torch.export, with an example script.

    MODEL is a classifier, a forecaster or a causal language model. The folder holds a graph for
    whole sequences of any length and, if the state has a fixed size, a graph for a single step; a
    forecaster has the step only, from raw values to quantiles. export.json describes inputs,
    outputs, labels, series, covariates and tokens. example.py runs the graphs with onnxruntime or
    torch, without eattn.

    Example: eattn export model/ --format onnx --out exported/
    """
    from eattn.export import save

    with Console(stderr=True).status("loading") as status:
        about = save(model, out, format=format, force=force, tell=status.update)
    for name, graph in about["graphs"].items():
        count, difference = len(graph["inputs"]), graph["difference"]
        print(f"{out / graph['file']}: {name}, {count} inputs, error at most {difference:.1e}")
    for name, reason in about["without"].items():
        print(f"no {name}: {reason}")
    print(f"{out / 'export.json'}: description of the graphs")
    print(f"{out / 'example.py'}: script that runs the graphs")
