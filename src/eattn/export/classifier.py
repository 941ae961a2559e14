"""The graphs of a `SequenceClassifier`: all of a series at once, or a causal one step by step."""

import torch
from torch import Tensor, nn

from eattn.export.checks import check_sequence, longest
from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.export.state import Layers, Named, ports
from eattn.models import SequenceClassifier
from eattn.models.series_embedding import SeriesEmbedding
from eattn.nn import EncoderState


def sequence(model: SequenceClassifier) -> Graph:
    """Series and which of their samples are real -> the logits of each."""
    check_sequence(model, model.config.mixer)
    places = longest(model, model.patch)
    return Graph(
        "sequence",
        model,
        inputs=(
            Port("x", torch.float32, (BATCH, LENGTH, model.channels)),
            Port("key_mask", torch.bool, (BATCH, LENGTH)),
            *calendar_port(model.embed, BATCH, LENGTH),
        ),
        output=Port("logits", torch.float32, (BATCH, model.classes)),
        # A graph is traced for more than one token.
        shortest=model.patch + 1 if model.patch > 1 else 1,
        longest=model.config.max_len if model.pooling == "flatten" else places,
    )


def step(model: SequenceClassifier) -> Graph:
    """One more sample of each series -> the logits of all so far."""
    _check_step(model)
    layers = Layers(model.encoder.blocks)
    layers.check()
    module = _Step(model, layers)
    return Graph(
        "step",
        module,
        inputs=(
            Port("x", torch.float32, (BATCH, model.channels)),
            *calendar_port(model.embed, BATCH),
        ),
        output=Port("logits", torch.float32, (BATCH, model.classes)),
        state=layers.ports + ports(module.begin()),
        continues=True,
        longest=longest(model),
    )


def _check_step(model: SequenceClassifier) -> None:
    if not model.config.causal:
        raise ValueError(
            "a classifier has no step unless it is causal: its tokens see those after them, so a"
            " label waits for the whole series"
        )
    for name, ahead, can in (
        ("embed", isinstance(model.embed.values.project, nn.Conv1d), "linear"),
        ("patch", model.patch > 1, 1),
        ("pooling", model.pooling == "flatten", "mean"),
    ):
        if ahead:
            raise ValueError(
                f"the step of a classifier needs {name}={can!r}: one sample must be enough for it"
            )


class _Step(nn.Module):
    def __init__(self, model: SequenceClassifier, layers: Layers) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def begin(self) -> Named:
        """What the pooling remembers of no tokens, of one row."""
        start = {"mean": 0.0, "max": -torch.inf}.get(self.model.pooling)
        own = {} if start is None else {"pooled": torch.full((1, self.model.config.dim), start)}
        return own | {"seen": torch.zeros(1, dtype=torch.int64)}

    def forward(
        self, x: Tensor, state: Named, calendar: Tensor | None = None
    ) -> tuple[Tensor, Named]:
        model, seen = self.model, state["seen"]
        times = None if calendar is None else calendar.unsqueeze(1)
        token = model.embed(x.unsqueeze(1), calendar=times, start=seen).squeeze(1)
        y, after = model.encoder.step(token, EncoderState(tuple(self.layers.take(state))))
        own = {}
        if model.pooling == "mean":
            own["pooled"] = state["pooled"] + y
            y = own["pooled"] / (seen + 1).unsqueeze(1)
        elif model.pooling == "max":
            y = own["pooled"] = torch.maximum(state["pooled"], y)
        return model.head(y), self.layers.name(after.layers) | own | {"seen": seen + 1}


def calendar_port(embed: SeriesEmbedding, *axes: str) -> tuple[Port, ...]:
    """The times of samples, where the model reads them."""
    if embed.calendar is None:
        return ()
    count = len(embed.calendar.fields)
    return (Port("calendar", torch.int64, (*axes, count), between=(1, 6)),)  # in every field
