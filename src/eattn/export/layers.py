"""Wrap models for export: decoding states as named tensors, and limits of a graph."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.models import Forecaster, SequenceClassifier
from eattn.nn import DecodingState, EncoderState, TransformerBlock
from eattn.nn.aft import AFT
from eattn.nn.decoding_state import KVCache, parts, rebuilt
from eattn.nn.deltanet import DeltaNet
from eattn.nn.embedding import LearnedPositions
from eattn.nn.gated import GatedLinearAttention
from eattn.nn.linear import LinearAttention
from eattn.nn.recurrent import Recurrence

Named = dict[str, Tensor]


class Stateful(nn.Module):
    """Model with its decoding state as named input and output tensors, such as `layer0.s`.

    `own` holds the initial tensors, of one row, that the model keeps besides the states of its
    blocks. Only a state of `fixed_size`, which does not grow with the tokens, is exported.
    """

    def __init__(self, model: Any, blocks: Iterable[Any], own: Named) -> None:
        super().__init__()
        self.model: Any = model
        self.blocks: list[TransformerBlock] = list(blocks)
        self.empty = [_empty_state(block) for block in self.blocks]
        last = (getattr(state, "after", state) for state in self.empty)  # after a convolution
        self.fixed_size = not any(isinstance(state, KVCache) for state in last)
        self.own = own | {"seen": torch.zeros(1, dtype=torch.int64)}

    def name(self, states: Sequence[DecodingState], own: Named) -> Named:
        """Return the tensors of the block states and the model's own tensors, in order."""
        found = {f"layer{i}.{n}": x for i, s in enumerate(states) for n, x in parts(s).items()}
        return found | {n: own[n] for n in self.own}

    def take(self, named: Named) -> EncoderState:
        """Rebuild the block states from their tensors."""
        found = []
        for i, like in enumerate(self.empty):
            prefix = f"layer{i}."
            own = {n.removeprefix(prefix): x for n, x in named.items() if n.startswith(prefix)}
            found.append(rebuilt(like, own))
        return EncoderState(tuple(found))

    def graph(
        self, name: str, inputs: tuple[Port, ...], output: Port, longest: int | None
    ) -> Graph:
        """Return the graph of this module, or raise if it cannot be exported."""
        mixer = self.model.config.mixer
        if name == "sequence":
            check_sequence(self.model, mixer)
        elif not self.fixed_size:
            raise ValueError(
                f"a step of mixer {mixer!r} cannot be exported: its state grows with each token,"
                " but graphs need a fixed size; use ea-N, ea-qN, la, la+gate,"
                " taylor, deltanet, gru or linear-rnn"
            )
        state = []
        for n, x in self.name(self.empty, self.own).items() if self.fixed_size else ():
            start = x.flatten()[0].item()
            assert bool((x == start).all()), f"{n} must be initialised with a single value"
            state.append(Port(n, x.dtype, (BATCH, *x.shape[1:]), float(start)))
        step = name == "step"
        return Graph(name, self, inputs, output, tuple(state), continues=step, longest=longest)


def series_inputs(
    model: SequenceClassifier | Forecaster, channels: int, *axes: str
) -> tuple[Port, ...]:
    """Return the inputs of a time-series model: values, calendar, and the mask of a sequence."""
    inputs, calendar = [Port("x", torch.float32, (*axes, channels))], model.embed.calendar
    if LENGTH in axes:
        inputs.append(Port("key_mask", torch.bool, axes))
    if calendar is not None:
        shape: tuple[int | str, ...] = (*axes, len(calendar.fields))
        inputs.append(Port("calendar", torch.int64, shape, between=(1, 6)))  # valid in every field
    return tuple(inputs)


def check_sequence(model: nn.Module, mixer: str) -> None:
    """Raise if the model loops over the tokens of a sequence."""
    loops = LinearAttention | GatedLinearAttention | DeltaNet | Recurrence
    if any(isinstance(module, loops) for module in model.modules()):
        raise ValueError(
            f"a sequence of any length cannot be exported with mixer {mixer!r}: it loops over the"
            " tokens, but graphs have no loops; export the step, or use ea-N or ea-qN"
        )


def longest(model: nn.Module, patch: int = 1) -> int | None:
    """Return the largest number of time points, `patch` per token; None if unlimited."""
    limits = [m.max_len for m in model.modules() if isinstance(m, LearnedPositions | AFT)]
    return min(limits) * patch if limits else None


def _empty_state(block: TransformerBlock) -> Any:
    """Return the initial state of one row, which is the state after a single masked token."""
    like = next(block.parameters())
    x = like.new_zeros(1, 1, block.config.dim)
    masked = torch.zeros(1, 1, dtype=torch.bool, device=like.device)
    with torch.no_grad():
        return block.mixer(x, key_mask=masked, return_state=True)[1]
