"""What a graph cannot do, in one line each."""

from torch import nn

from eattn.nn.aft import AFT
from eattn.nn.embedding import LearnedPositions
from eattn.nn.linear import LinearAttention
from eattn.nn.recurrent import Recurrence
from eattn.nn.softmax import SoftmaxAttention


def check_sequence(model: nn.Module, mixer: str) -> None:
    """That the model reads a sequence of any length without a loop over it."""
    if any(isinstance(module, LinearAttention | Recurrence) for module in model.modules()):
        raise ValueError(
            f"a sequence of any length cannot be exported with mixer {mixer!r}: it goes through"
            " tokens in a loop, and a graph has none; its step can, and ea-N and ea-qN do both"
        )


def longest(model: nn.Module, patch: int = 1) -> int | None:
    """How many samples the model has places for, `patch` to a token; None: any number."""
    places = [m.max_len for m in model.modules() if isinstance(m, LearnedPositions | AFT)]
    caches = [m for m in model.modules() if isinstance(m, SoftmaxAttention) and m.causal]
    places += [m.max_len for m in caches if m.max_len is not None]
    return min(places) * patch if places else None
