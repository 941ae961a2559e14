"""The Triton backend on a GPU, in addition to the tests of every backend: CUDA graphs, no sync."""

import pytest
import torch
from op_helpers import causals, draw
from torch.utils._pytree import tree_leaves

from eattn import Quadrature, State, Taylor, ea_series, ea_series_step
from eattn.ops import triton

why_not = triton.unavailable() or triton.no_device()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_not is not None, reason=f"triton: {why_not}")]
both = pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(9)], ids=str)


def on_gpu(*shape: int) -> list[torch.Tensor]:
    return [draw(*shape, seed=i).to("cuda", torch.float32) for i in range(3)]


def captured(call):
    """Compile and tune a call, capture it in a CUDA graph; return the graph and its output."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@both
@torch.no_grad()
def test_decoding_step_replays_from_a_cuda_graph(expansion):
    q, k, v = on_gpu(2, 9, 40)
    token = [x[:, 0].clone() for x in (q, k, v)]
    state = State.zeros(2, 40, expansion=expansion, device="cuda")

    def step():
        y, after = ea_series_step(*token, state)
        for held, new in zip(tree_leaves(state), tree_leaves(after), strict=True):
            held.copy_(new)
        return y

    graph, y = captured(step)
    start = State.zeros(2, 40, expansion=expansion)
    for held, empty in zip(tree_leaves(state), tree_leaves(start), strict=True):
        held.copy_(empty)
    ys = []
    for t in range(9):
        for held, x in zip(token, (q, k, v), strict=True):
            held.copy_(x[:, t])
        graph.replay()
        ys.append(y.clone())
    want = ea_series(q, k, v, expansion=expansion, causal=True)
    torch.testing.assert_close(torch.stack(ys, 1), want, rtol=1e-4, atol=1e-4)


@causals
@pytest.mark.parametrize("shape", [(1, 3000, 40), (1024, 20, 33)], ids=["chunks", "fused"])
@torch.no_grad()
def test_sequence_replays_from_a_cuda_graph(causal, shape):
    q, k, v = on_gpu(*shape)
    graph, y = captured(lambda: ea_series(q, k, v, causal=causal))
    for x in (q, k, v):
        x.mul_(0.5)
    graph.replay()
    assert torch.equal(y, ea_series(q, k, v, causal=causal))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype feature warns
def test_calls_do_not_synchronize():
    """The first calls compile and tune, and are not tested."""
    q, k, v = on_gpu(1, 700, 40)
    cu = torch.tensor([0, 300, 700], dtype=torch.int32, device="cuda")
    state = State.zeros(1, 40, device="cuda")

    def calls():
        ea_series_step(q[:, 0], k[:, 0], v[:, 0], state)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        ea_series(*leaves, causal=True, cu_seqlens=cu).sum().backward()

    calls()
    try:
        torch.cuda.set_sync_debug_mode("error")
        calls()
    finally:
        torch.cuda.set_sync_debug_mode("default")
