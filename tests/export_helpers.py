"""Exported graphs to compare with their models; tests must skip without onnxruntime."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor
from torch.testing import assert_close

from eattn.export import Graph

CLOSE = dict(rtol=1e-4, atol=1e-4)
SIZES = [(1, 1), (2, 7), (5, 150)]  # batch and length; not the traced ones


class Exported:
    """Exported graph as ONNX and as a torch program.

    Each of its `forms` takes the arguments of the module and returns a dict of outputs.
    `onnx=False` skips ONNX, which takes several times as long to export.
    """

    def __init__(self, graph: Graph, folder: Path, *, onnx: bool = True) -> None:
        self.graph = graph
        program = graph.torch()
        self.program = program.module()
        self.forms, self.session = [self.torch], None
        if onnx:
            graph.onnx(program).save(folder / "graph.onnx")
            self.session = onnxruntime.InferenceSession(folder / "graph.onnx")
            self.forms = [self.onnx, self.torch]

    def onnx(self, *arguments: Any) -> dict[str, Tensor]:
        names = self.graph.output_names
        arrays = {name: x.numpy() for name, x in self.graph.flat(list(arguments)).items()}
        found = self.session.run(names, arrays)
        return {name: torch.from_numpy(x) for name, x in zip(names, found, strict=True)}

    def torch(self, *arguments: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            return self.graph.named(self.program(*arguments))

    def every(self, *arguments: Any) -> list[dict[str, Tensor]]:
        return [form(*arguments) for form in self.forms]


def state_of(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state among the outputs of a graph, by input name."""
    return {n.removeprefix("next."): x for n, x in outputs.items() if n.startswith("next.")}


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert list(got) == list(want)
    for name, x in want.items():
        assert_close(got[name], x, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def ran(folder: Path) -> str:
    """Run example.py, check which packages it imports, and return its output."""
    about = json.loads((folder / "export.json").read_text())
    code = f"""
import runpy, sys
before = {{*sys.modules, "graphs"}}
sys.path.insert(0, {str(folder)!r})
runpy.run_path({str(folder / "example.py")!r}, run_name="__main__")
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names
if {about["format"] == "onnx"}:
    assert loaded == {{"numpy", "onnxruntime"}}, loaded
assert not loaded & {{"eattn", "transformers"}}, loaded
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
