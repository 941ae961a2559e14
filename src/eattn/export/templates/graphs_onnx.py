"""Open exported graphs with onnxruntime and numpy alone."""

import json
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).parent
ABOUT = json.loads((HERE / "export.json").read_text(encoding="utf-8"))


def open_graph(name):
    """Return a function that runs the graph `name` on a dict of arrays."""
    graph = ABOUT["graphs"][name]
    session = onnxruntime.InferenceSession(HERE / graph["file"])
    outputs = [port["name"] for port in graph["outputs"]]
    return lambda inputs: dict(zip(outputs, session.run(outputs, inputs), strict=True))


def array(values, dtype):
    return np.array(values, dtype=dtype)
