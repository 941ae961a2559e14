"""Decoding states of the blocks as tensors with names, `layer0.s`, and back."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from eattn.export.graph import BATCH, Port
from eattn.export.slots import Slots, at, slotted
from eattn.nn import DecodingState, TransformerBlock
from eattn.nn.decoding_state import ConvState, KVCache, parts, rebuilt

Named = dict[str, Tensor]


class Layers:
    """What the blocks remember; `kept` where all of it has a constant size."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        self.blocks: list[TransformerBlock] = list(blocks)
        self.empty = [slotted(_empty(block)) for block in self.blocks]
        self.kept = not any(map(_grows, self.empty))

    def check(self) -> None:
        """That it can go from step to step through a graph."""
        if not self.kept:
            raise ValueError(
                f"a step of mixer {self.blocks[0].config.mixer!r} cannot be exported: it keeps"
                " every token, and the state of a graph has one size: use ea-N, ea-qN, or sa with"
                " max_len"
            )

    def name(self, states: Sequence[DecodingState]) -> Named:
        return {
            f"layer{i}.{name}": x
            for i, state in enumerate(states)
            for name, x in parts(slotted(state)).items()
        }

    def take(self, named: Named) -> list[DecodingState]:
        """The states whose tensors these are, among others; `seen` tokens were before."""
        found = []
        for i, like in enumerate(self.empty):
            prefix = f"layer{i}."
            own = {n.removeprefix(prefix): x for n, x in named.items() if n.startswith(prefix)}
            found.append(at(rebuilt(like, own), named["seen"]))
        return found

    @property
    def ports(self) -> tuple[Port, ...]:
        return ports(self.name(self.empty)) if self.kept else ()


def ports(empty: Named) -> tuple[Port, ...]:
    """Those of a state, from that of one row which has not begun."""
    found = []
    for name, x in empty.items():
        start = x.flatten()[0].item()
        assert bool((x == start).all()), f"{name} does not begin with one value"
        found.append(Port(name, x.dtype, (BATCH, *x.shape[1:]), float(start)))
    return tuple(found)


def _empty(block: TransformerBlock) -> Any:
    """The state after a token that is none."""
    like = next(block.parameters())
    x = like.new_zeros(1, 1, block.config.dim)
    none = torch.zeros(1, 1, dtype=torch.bool, device=like.device)
    with torch.no_grad():
        return block.mixer(x, key_mask=none, return_state=True)[1]


def _grows(state: DecodingState) -> bool:
    last = state.after if isinstance(state, ConvState) else state
    return isinstance(last, KVCache) and not isinstance(last, Slots)
