"""`eattn export`: a saved model as graphs that run without eattn."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder that fit or save_pretrained wrote.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write the files here.")],
    format: Annotated[str, typer.Option("--format", help="onnx or torch.")] = "onnx",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier export.")] = False,
) -> None:
    """Write a model as graphs for onnxruntime or torch alone, and a script that runs them.

    MODEL is a classifier, a forecaster or a causal language model. There is a graph of whole
    sequences of any length, and one of a single step with the state as named inputs and outputs,
    each compared with the model; export.json tells of both, of labels, scales and tokens, and
    example.py runs them. Example: eattn export model/ --format onnx --out exported/
    """
    from eattn.export import save

    with Console(stderr=True).status("loading") as status:
        told = save(model, out, format=format, force=force, tell=status.update)
    for name, graph in told["graphs"].items():
        size, off = len(graph["inputs"]), graph["difference"]
        print(f"{out / graph['file']}: {name}, {size} inputs, within {off:.1e} of the model")
    for name, why in told["without"].items():
        print(f"no {name}: {why}")
    print(f"{out / 'export.json'} tells of them, {out / 'example.py'} runs them")
