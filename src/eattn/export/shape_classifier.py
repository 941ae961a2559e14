"""Graphs of a `ShapeClassifier` or `ClassifierEnsemble`: for a series, or for one sample."""

import torch
from torch import Tensor

from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.export.layers import Named, Stateful, check_sequence, longest
from eattn.models import ClassifierEnsemble, ShapeClassifier, ShapeState


def sequence(model: ShapeClassifier | ClassifierEnsemble) -> Graph:
    """Return the graph from series and their mask to logits."""
    network = _networks(model)[0]
    check_sequence(model, model.config.mixer)
    inputs = (
        Port("x", torch.float32, (BATCH, LENGTH, network.channels)),
        Port("key_mask", torch.bool, (BATCH, LENGTH)),
    )
    output = Port("logits", torch.float32, (BATCH, network.classes))
    return Graph("sequence", model, inputs, output, longest=longest(model, network.stride))


def step(model: ShapeClassifier | ClassifierEnsemble) -> Graph:
    """Return the graph from one more sample of each series to logits."""
    networks = _networks(model)
    if not model.config.causal:
        raise ValueError(
            "only a causal classifier has a step: this model reads later samples, so a prediction"
            " needs the whole series"
        )
    if len(networks) > 1:
        raise ValueError(f"the step needs ensemble=1, got {len(networks)} networks")
    [network] = networks
    inputs = (Port("x", torch.float32, (BATCH, network.channels)),)
    output = Port("logits", torch.float32, (BATCH, network.classes))
    return _Step(network).graph("step", inputs, output, longest(network))


class _Step(Stateful):
    def __init__(self, model: ShapeClassifier) -> None:
        empty = model.empty_state(torch.zeros(1, model.channels))
        own = {f"window{i}": x for i, x in enumerate(empty.windows)}
        own |= {"total": empty.total, "largest": empty.largest}
        super().__init__(model, model.encoder.blocks if model.encoder else (), own)

    def forward(self, x: Tensor, state: Named) -> tuple[Tensor, Named]:
        seen = state["seen"]
        before = ShapeState(
            (state["window0"], state["window1"]),
            self.take(state),
            state["total"],
            state["largest"],
            seen.unsqueeze(1).to(x.dtype),
        )
        logits, after = self.model.step(x, before)
        own = {f"window{i}": window for i, window in enumerate(after.windows)}
        own |= {"total": after.total, "largest": after.largest, "seen": seen + 1}
        return logits, self.name(after.encoder.layers, own)


def _networks(model: ShapeClassifier | ClassifierEnsemble) -> list[ShapeClassifier]:
    return [model] if isinstance(model, ShapeClassifier) else list(model.networks)  # type: ignore[arg-type]
