"""Open exported graphs with torch alone."""

import json
from pathlib import Path

import torch

HERE = Path(__file__).parent
ABOUT = json.loads((HERE / "export.json").read_text(encoding="utf-8"))


def open_graph(name):
    """Return a function that runs the graph `name` on a dict of tensors."""
    graph = ABOUT["graphs"][name]
    program = torch.export.load(HERE / graph["file"]).module()
    outputs = [port["name"] for port in graph["outputs"]]

    def run(inputs):
        state = {p["name"]: inputs[p["name"]] for p in graph["inputs"] if p["state"]}
        first, *others = [inputs[p["name"]] for p in graph["inputs"] if not p["state"]]
        found = program(first, *([state] if state else []), *others)
        y, after = found if len(outputs) > 1 else (found, {})
        return dict(zip(outputs, [y, *after.values()], strict=True))

    return run


def empty_state(name, batch=1):
    """Return the state before the first step of the graph `name`."""
    return {
        port["name"]: torch.full(
            [batch, *port["shape"][1:]], float(port["start"]), dtype=getattr(torch, port["dtype"])
        )
        for port in ABOUT["graphs"][name]["inputs"]
        if port["state"]
    }


def array(values, dtype):
    return torch.tensor(values, dtype=getattr(torch, dtype))
