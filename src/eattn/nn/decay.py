"""Decay of earlier tokens in element-wise attention: learned per channel, or a gate from x."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_bool
from eattn.nn.base import projection

DecayKind = Literal["fixed", "gated"]
KINDS = ("fixed", "gated")
LOGITS = (-2.0, 6.0)  # initial range of b: half-lives from 0.3 to 280 tokens
RANK = 16  # of the projection from x to the gates
GATE_SCALE = 0.1  # of the initial projection: gates start close to the fixed decay


class Decay(nn.Module):
    """log_decay = logsigmoid(b) for each channel; if gated, logsigmoid(W_2 W_1 x + b).

    b starts on an even grid over the channels, so that they forget at different rates. Has D
    parameters; a gate has 32 D more, as W_1 is [16, D] and W_2 is [D, 16].

    Parameters
    ----------
    dim : int
        Number of channels D.
    gated : bool
        Whether the decay depends on x.
    """

    def __init__(self, dim: int, *, gated: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(*LOGITS, dim))
        self.gate_down = self.gate_up = None
        if check_bool("gated", gated):
            self.gate_down = projection(dim, RANK, bias=False)
            self.gate_up = projection(RANK, dim, bias=False)
            with torch.no_grad():
                self.gate_up.weight *= GATE_SCALE

    def forward(self, x: Tensor) -> Tensor:
        """Return the log decay, in float32 or wider.

        Parameters
        ----------
        x : Tensor, shape (B, L, D) or (B, D)
            Tokens; used only by a gate.

        Returns
        -------
        log_decay : Tensor, shape (D,), or the shape of x for a gate
        """
        wide = torch.promote_types(self.bias.dtype, torch.float32)
        logit = self.bias.to(wide)
        if self.gate_down is not None and self.gate_up is not None:
            logit = logit + self.gate_up(self.gate_down(x)).to(wide)
        return F.logsigmoid(logit)

    def extra_repr(self) -> str:
        return f"{len(self.bias)}, gated={self.gate_down is not None}"
