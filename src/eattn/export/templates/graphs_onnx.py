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


def empty_state(name, batch=1):
    """Return the state before the first step of the graph `name`."""
    return {
        port["name"]: np.full(
            [batch, *port["shape"][1:]], float(port["start"]), dtype=port["dtype"]
        )
        for port in ABOUT["graphs"][name]["inputs"]
        if port["state"]
    }


def array(values, dtype):
    return np.array(values, dtype=dtype)
