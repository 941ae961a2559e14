"""One sequence over many ranks: values and gradients of one process, in bytes that do not grow."""

from collections.abc import Iterator
from typing import Any

import distributed_worker as slices
import pytest
import sequence_parallel_worker as shards
import torch
import torch.distributed as dist
import torchrun_helpers as ranks
from distributed_worker import CASES, EXPANSIONS, LENGTHS, B, D
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import eattn
from eattn import distributed
from eattn.distributed import sequence_parallel
from eattn.nn import make_mixer


def work() -> dict[str, Any]:
    return slices.work() | shards.work()


@pytest.fixture(scope="module", params=LENGTHS)
def found(request, tmp_path_factory) -> list[dict[str, Any]]:
    answers = ranks.run(work, request.param, tmp_path_factory.mktemp("ranks"))
    for answer in answers:
        assert "error" not in answer, answer["error"]
    return answers


@pytest.fixture
def alone(tmp_path) -> Iterator[None]:
    """A process group of this process only."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_many_ranks_give_what_one_process_gives(found):
    """Uneven slices, one without a token; masks; states in and out; packed; cross-attention."""
    for answer in found:
        for kind in EXPANSIONS:
            for case in [*CASES, "packed", "cross", "cross masked"]:
                assert answer[f"{kind} {case}"] < 1e-10, f"{kind} {case}"


def test_states_whose_sums_underflow_without_a_shift_are_merged(found):
    for answer in found:
        assert answer["taylor far"] < 1e-10


def test_layers_on_shards_match_the_whole_sequence(found):
    """Halo of the convolution, masks, states, packing, recomputation and torch.compile."""
    for answer in found:
        for name, error in answer["sharded"].items():
            assert error < 1e-10, name


def test_what_cannot_be_sharded_raises(found):
    for answer in found:
        errors = answer["unsharded"]
        assert errors.pop("left open") == "None"
        assert len(errors) == 2 * len(shards.UNSHARDED) + 3
        for name, error in errors.items():
            assert f"inside sequence_parallel over {len(found)} ranks" in error, name
            assert "ea-6, ea-q17" in error


def test_what_is_sent_does_not_grow_with_the_sequence(found):
    N, W = 7, len(found)
    state = 4 * (B * D * (2 * N + 1) + 2)
    for answer in found:
        short, long = answer["operator"]
        assert short == long == [96, state, state]
        short, long = answer["block"]
        tokens = 4 * B * D * 4  # the last three of each row, and how many they are
        assert short == long == [tokens, state, state, W * tokens]


def test_ranks_that_disagree_all_say_so(found):
    told = {
        "D": "the same D, got 5 on rank 0 and 6 on rank",
        "B": "the same B, got 2 on rank 0 and 1 on rank",
        "order": "the same order or nodes, got 4 on rank 0 and 6 on rank",
        "expansion": "the same expansion, got Taylor on rank 0 and Quadrature on rank",
        "dtype": "the same dtype, got torch.float32 on rank 0 and torch.float64 on rank",
        "causal": "the same causal, got False on rank 0 and True on rank",
        "gradient": "the same gradient, got False on rank 0 and True on rank",
        "layer": "the same D, got 5 on rank 0 and 6 on rank",
        "convolution": "the same B, got 2 on rank 0 and 1 on rank",
    }
    *others, last = (answer["disagree"] for answer in found)
    for said in (*others, last):
        for name, words in told.items():
            assert said[name].startswith("DisagreementError: all ranks must have"), name
            assert words in said[name]
    assert "q must be [B, L, D], got shape (3, 5)" in last["refused"]
    assert "x must be [B, L, D] with D = dim = 5, got (2, 3, 6)" in last["refused layer"]
    for said in others:
        assert f"rank {len(others)} refused what it was given" in said["refused"]
        assert f"rank {len(others)} refused what it was given" in said["refused layer"]
    for said in (*others, last):
        assert said["mixed"] == "nothing"  # it is promoted
    for answer in found:
        assert answer["after"] < 1e-10  # nobody is left waiting


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("causal", [False, True])
def test_a_group_of_one_is_the_operator_itself(causal):
    q, k, v = (slices.draw(B, 7, D, seed=i) for i in range(3))
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


def test_nothing_of_a_later_slice_is_seen(found):
    assert [answer["ahead"] for answer in found] == [False] * (len(found) - 1) + [True]


def test_a_process_group_is_needed():
    x = torch.zeros(1, 2, 3)
    with pytest.raises(RuntimeError, match="must be initialised first"):
        distributed.ea_series(x, x, x)
    with pytest.raises(RuntimeError, match="must be initialised before"), sequence_parallel():
        pass
