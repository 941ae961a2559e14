"""BERT-base as the benchmarks measure it: 12 blocks, 768 channels, heads of 64, FFN 4D.

It has blocks alone: embeddings cost the same with every mixer. Rows of its experiments name the
`mixer`; the functions at the end compare mixers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from eattn.nn import TransformerConfig, TransformerEncoder
from paper.harness.runlog import Row
from paper.harness.target import better

BASE = TransformerConfig.bert_base()
DIM, DEPTH, DROPOUT = BASE.dim, BASE.depth, BASE.dropout
FLOAT = 4  # bytes
OURS = "ea-6"


def make_model(
    name: str,
    *,
    dim: int = DIM,
    depth: int = DEPTH,
    causal: bool = False,
    max_len: int | None = None,
    dropout: float = DROPOUT,
) -> TransformerEncoder:
    """Return BERT-base with a mixer, or a model of its proportions for tests; seeded."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"dim": dim, "depth": depth, "ffn": 4 * dim, "mixer": name}
    options |= {"causal": causal, "max_len": max_len, "dropout": dropout}
    return TransformerEncoder(TransformerConfig.bert_base(**options))


@cache
def weight_bytes(name: str, *, dim: int, depth: int) -> int:
    """Return the bytes of all parameters; gradients take as much again."""
    with torch.device("meta"):
        return FLOAT * make_model(name, dim=dim, depth=depth).num_parameters


def default_device() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class ModelPlan:
    """Sizes of the model of a plan; only the defaults are BERT-base."""

    dim: int = DIM
    depth: int = DEPTH
    device: str = "cpu"

    @property
    def size(self) -> dict[str, Any]:
        return {"dim": self.dim, "depth": self.depth}

    @property
    def key(self) -> dict[str, Any]:
        """Fields of a key that identify the model and the device."""
        name = torch.cuda.get_device_name() if self.device == "cuda" else self.device
        return self.size | {"device": name}

    def model_bytes(self, mixer: str) -> int:
        return weight_bytes(mixer, **self.size)

    def conditions(self, mixer: str) -> dict[str, Any]:
        """Return the other fields of a row that describe the model and how it runs."""
        base = (self.dim, self.depth) == (DIM, DEPTH)
        model = {"model": "BERT-base" if base else "smaller, for a test", "dtype": "float32"}
        threads = torch.get_num_threads()
        return model | {"model_bytes": self.model_bytes(mixer), "threads": threads}


def mixer_points(rows: Iterable[Row], x: str, y: str, *, unit: float = 1.0) -> list[Row]:
    """Return the points of a chart with a series per mixer, from the rows that have the field y.

    Median times have a band from p20 to p80.
    """
    points = []
    for row in sorted((row for row in rows if y in row), key=lambda row: float(row[x])):
        point = {"series": row["mixer"], "x": row[x], "y": row[y] / unit}
        band = {"low": row["p20"] / unit, "high": row["p80"] / unit} if y == "p50" else {}
        points.append(point | band)
    return points


def better_mixers(
    rows: Iterable[Row], field: str, words: str, *axes: str, more: bool = False
) -> Iterator[str]:
    """Yield a sentence for each point at which another mixer has less (or more) than EA-6.

    Points are the same when they agree in all axes. `words` says what the other mixer does.
    """
    found = [row for row in rows if field in row]
    ours = {tuple(row[axis] for axis in axes): row[field] for row in found if row["mixer"] == OURS}
    for row in found:
        own, other = ours.get(tuple(row[axis] for axis in axes)), row[field]
        if own is None or row["mixer"].startswith("ea-"):
            continue
        if better(own, other) if more else better(other, own):
            by = max(own, other) / min(own, other)
            where = ", ".join(f"{axis} = {row[axis]:,}" for axis in axes)
            yield f"`{row['mixer']}` {words} than EA-6 at {where}: by {by:.2f} ×."
