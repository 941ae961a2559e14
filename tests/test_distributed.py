"""Sequence parallelism: values and gradients match one process, and traffic is constant."""

from collections.abc import Iterator
from typing import Any

import distributed_worker as operators
import pytest
import sequence_parallel_worker as layers
import torch
import torch.distributed as dist
import torchrun_helpers as ranks
from distributed_worker import CASES, DECAYED, EXPANSIONS, LENGTHS, B, D
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import eattn
from eattn import distributed
from eattn.distributed import sequence_parallel
from eattn.nn import make_mixer

PACKED = ("packed", "packed decay", "packed gate")


def work() -> dict[str, Any]:
    return operators.work() | layers.work()


@pytest.fixture(scope="module", params=LENGTHS)
def found(request, tmp_path_factory) -> list[dict[str, Any]]:
    results = ranks.run(work, request.param, tmp_path_factory.mktemp("ranks"))
    for result in results:
        assert "error" not in result, result["error"]
    return results


@pytest.fixture
def alone(tmp_path) -> Iterator[None]:
    """Create a process group of this process only."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ranks_match_one_process(found):
    """Uneven and empty shards, masks, states, decay, packed sequences and cross-attention."""
    for result in found:
        for kind in EXPANSIONS:
            for case in [*CASES, *DECAYED, *PACKED, "cross", "cross masked"]:
                assert result[f"{kind} {case}"] < 1e-10, f"{kind} {case}"


def test_merged_states_do_not_underflow(found):
    for result in found:
        assert result["taylor far"] < 1e-10


def test_layers_on_shards_match_whole_sequence(found):
    """Convolution, masks, states, packing, gradient checkpointing and torch.compile."""
    for result in found:
        for name, error in result["sharded"].items():
            assert error < 1e-10, name


def test_unsupported_layers_raise_on_shards(found):
    for result in found:
        errors = result["unsharded"]
        assert errors.pop("left open") == "None"
        assert len(errors) == 2 * len(layers.UNSHARDED) + 3
        for name, error in errors.items():
            assert f"inside sequence_parallel over {len(found)} ranks" in error, name
            assert "ea-6, ea-q17" in error


def test_traffic_does_not_grow_with_sequence(found):
    N, W = 7, len(found)
    state = 4 * (B * D * (2 * N + 1) + 2)
    for result in found:
        short, long = result["operator"]
        assert short == long == [104, state, state]
        short, long = result["block"]
        tokens = 4 * B * D * 4  # the last three of each row, and their number
        assert short == long == [tokens, state, state, W * tokens]


def test_disagreement_raises_on_every_rank(found):
    messages = {
        "D": "the same D, got 5 on rank 0 and 6 on rank",
        "B": "the same B, got 2 on rank 0 and 1 on rank",
        "order": "the same order or nodes, got 4 on rank 0 and 6 on rank",
        "expansion": "the same expansion, got Taylor on rank 0 and Quadrature on rank",
        "dtype": "the same dtype, got torch.float32 on rank 0 and torch.float64 on rank",
        "causal": "the same causal, got False on rank 0 and True on rank",
        "log_decay": "the same log_decay, got False on rank 0 and True on rank",
        "gradient": "the same gradient, got False on rank 0 and True on rank",
        "layer": "the same D, got 5 on rank 0 and 6 on rank",
        "convolution": "the same B, got 2 on rank 0 and 1 on rank",
    }
    *others, last = (result["disagree"] for result in found)
    for errors in (*others, last):
        for name, message in messages.items():
            assert errors[name].startswith("DisagreementError: all ranks must have"), name
            assert message in errors[name]
    assert "q must be [B, L, D], got shape (3, 5)" in last["invalid"]
    assert "x must be [B, L, D] with D = dim = 5, got (2, 3, 6)" in last["invalid layer"]
    for errors in others:
        for name in ("invalid", "invalid layer"):
            assert f"rank {len(others)} raised an error for its inputs" in errors[name]
    for errors in (*others, last):
        assert errors["mixed"] == "nothing"  # mixed dtypes are promoted
    for result in found:
        assert result["after"] < 1e-10  # no rank is left waiting


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("causal", [False, True])
def test_group_of_one_rank_matches_operator(causal):
    q, k, v = (operators.draw(B, 7, D, seed=i) for i in range(3))
    ours = distributed.ea_series(q, k, v, causal=causal, return_state=True)
    theirs = eattn.ea_series(q, k, v, causal=causal, return_state=True)
    assert_close(tree_leaves(ours), tree_leaves(theirs))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["ea-6", "sa", "ea-6+center"])
def test_context_of_one_rank_changes_nothing(name):
    mixer, x = make_mixer(name, 8, heads=2, short_conv=2), torch.randn(1, 3, 8)
    with sequence_parallel():
        y = mixer(x)
    assert_close(y, mixer(x))


def test_earlier_ranks_ignore_later_shards(found):
    assert [result["ahead"] for result in found] == [False] * (len(found) - 1) + [True]


def test_process_group_is_required():
    x = torch.zeros(1, 2, 3)
    with pytest.raises(RuntimeError, match="must be initialised first"):
        distributed.ea_series(x, x, x)
    with pytest.raises(RuntimeError, match="must be initialised before"), sequence_parallel():
        pass
