"""Direct forecaster: quantiles of all steps ahead from the state at one time."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.nn.block import TransformerConfig, TransformerOptions, configure
from eattn.nn.encoder import EncoderState, TransformerEncoder

UNIT = 0.5413248546129181  # softplus(UNIT) = 1
FARTHEST = 50.0  # scales: larger differences between rules are clipped before they are weighted


class QuantileForecaster(nn.Module):
    """Correct a mixture of simple forecasts, and predict quantiles around it.

    The encoder reads tokens [B, L, T]. For each step ahead of a time, the head gets the output of
    the encoder at that time, simple forecasts ("rules") in scales, and features of the step. The
    median is m = r_0 + sum_i w_i (r_i - r_0) + c; the head predicts w, c and the distances between
    neighbouring quantiles, which are positive, so quantiles never cross. Before training, m = r_0,
    and the quantiles are those of a normal distribution with a standard deviation of one scale.

    Parameters
    ----------
    tokens : int
        Number of features T of a token.
    rules : int
        Number of simple forecasts.
    features : int
        Number of features of a step ahead.
    plain : int
        Number of the first of these features that also enter the output directly.
    levels : sequence of float
        Quantile levels in ascending order, with 0.5 among them.
    config : TransformerConfig, optional
        Configuration of the encoder.
    **changes
        Fields of `TransformerConfig`, which take precedence over `config`.
    """

    def __init__(
        self,
        tokens: int,
        rules: int,
        features: int,
        plain: int,
        levels: Sequence[float],
        config: TransformerConfig | None = None,
        **changes: Unpack[TransformerOptions],
    ) -> None:
        super().__init__()
        self.gaps: Tensor
        self.config = c = configure(config, changes | {"causal": True})
        self.rules, self.plain, self.levels = check_size("rules", rules), plain, tuple(levels)
        if 0.5 not in self.levels or list(levels) != sorted(set(levels)):
            raise ValueError(f"levels must ascend and contain 0.5, got {self.levels}")
        self.below = self.levels.index(0.5)  # number of levels below the median
        self.embed = nn.Linear(tokens, c.dim)
        self.encoder = TransformerEncoder(c)
        self.from_state = nn.Linear(c.dim, c.dim)
        self.from_step = nn.Linear(rules + features, c.dim, bias=False)
        self.hidden = nn.Linear(c.dim, c.dim)
        self.dropout = nn.Dropout(c.dropout)
        outputs = rules + 1 + len(self.levels)
        self.head = nn.Linear(c.dim, outputs, bias=False)
        self.direct = nn.Linear(plain, outputs, bias=False)
        for zero in (self.head, self.direct):
            nn.init.zeros_(zero.weight)
        normal = torch.tensor([NormalDist().inv_cdf(level) for level in self.levels])
        self.register_buffer("gaps", normal.diff(), persistent=False)

    def forward(self, tokens: Tensor, origins: Tensor, rules: Tensor, features: Tensor) -> Tensor:
        """Return quantiles [B, O, H, levels] of H steps ahead of each of O times.

        Parameters
        ----------
        tokens : Tensor, shape (B, L, T)
        origins : int Tensor, shape (B, O)
            Positions of the times in the tokens.
        rules : Tensor, shape (B, O, H, rules)
        features : Tensor, shape (B, O, H, features)
        """
        y = self.encoder(self.embed(tokens))
        rows = torch.arange(len(y), device=y.device).unsqueeze(1)
        return self.quantiles(y[rows, origins], rules, features)

    def read(
        self, tokens: Tensor, state: EncoderState | None = None, **options: Any
    ) -> tuple[Tensor, EncoderState]:
        """Return the output of the encoder [B, L, D] and the state after the tokens."""
        found: tuple[Tensor, EncoderState] = self.encoder(
            self.embed(tokens), state=state, return_state=True, **options
        )
        return found

    def step(self, token: Tensor, state: EncoderState | None) -> tuple[Tensor, EncoderState]:
        """Return the output of the encoder [B, D] for one token [B, T], and the state after it."""
        return self.encoder.step(self.embed(token), state)

    def quantiles(self, state: Tensor | None, rules: Tensor, features: Tensor) -> Tensor:
        """Return quantiles [..., H, levels] from outputs of the encoder [..., D].

        Without `state`, only the direct path from the features counts.
        """
        y = self.direct(features[..., : self.plain])
        if state is not None:
            step = torch.cat([torch.asinh(rules), features], -1)
            hidden = F.gelu(self.from_state(state).unsqueeze(-2) + self.from_step(step))
            hidden = hidden + F.gelu(self.hidden(hidden))
            y = y + self.head(self.dropout(hidden))
        weights, shift, width, gaps = y.split([self.rules, 1, 1, len(self.levels) - 1], -1)
        naive = rules[..., :1]
        apart = (rules - naive).clamp(-FARTHEST, FARTHEST)
        median = naive + (weights * apart).sum(-1, keepdim=True) + shift
        gaps = self.gaps * F.softplus(gaps + UNIT) * F.softplus(width + UNIT)
        lower = gaps[..., : self.below].flip(-1).cumsum(-1).flip(-1)
        upper = gaps[..., self.below :].cumsum(-1)
        return torch.cat([median - lower, median, median + upper], -1)
