"""The operator inside PyTorch: compile, autocast, checkpointing, fork, DataLoader, export."""

import multiprocessing

import pytest
import torch
from op_helpers import EVERY_BACKEND, causals, draw, every_backend, pairwise, unshifted
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from eattn import Quadrature, State, Taylor, accumulate, ea, ea_series, ea_series_step, readout

both = pytest.mark.parametrize("expansion", [Taylor(4), Quadrature(9)], ids=str)


def inputs(*shape, dtype=torch.float32, n=3):
    return [draw(*shape, seed=i).to(dtype).requires_grad_() for i in range(n)]


# The instruction sets differ in their kernels only, not in how PyTorch sees them.
each_kind = pytest.mark.parametrize(
    "backend", [p for p in EVERY_BACKEND if p.values[0] not in ("native-avx512", "native-avx2")]
)


def op_arguments(backend, expansion, causal, with_):
    q, k, v = inputs(1 if "packed" in with_ else 2, 20, 5)
    s = z = shift = None
    if "state" in with_:
        s, z, shift = State.zeros(2, 5, expansion=expansion).tensors().values()
        s, z = s.requires_grad_(), z.requires_grad_()
    key_mask = torch.rand(q.shape[:2]) > 0.3 if "mask" in with_ else None
    cu = torch.tensor([0, 7, 20], dtype=torch.int32) if "packed" in with_ else None
    numbers = expansion.terms, expansion.radius
    decay = None
    if "decay" in with_:
        decay = torch.rand(5).neg().requires_grad_()
    elif "gate" in with_:
        decay = torch.rand(q.shape).neg().requires_grad_()
    return q, k, v, key_mask, cu, s, z, shift, decay, *numbers, causal, backend, True


@each_kind
@pairwise(
    "with_, expansion",
    ["decay", "gate mask", "packed decay", "packed gate mask state"],
    [Taylor(4), Quadrature(9), Quadrature(65)],
)
def test_opcheck_passes_with_decay(backend, expansion, with_):
    arguments = op_arguments(backend, expansion, True, with_)
    torch.library.opcheck(torch.ops.eattn.ea_series, arguments)


@each_kind
@pairwise(
    "with_, expansion, causal",
    ["", "mask", "packed mask", "state", "mask state", "packed mask state"],
    [Taylor(4), Quadrature(9)],
    [False, True],
)
def test_opcheck_passes(backend, causal, expansion, with_):
    arguments = op_arguments(backend, expansion, causal, with_)
    torch.library.opcheck(torch.ops.eattn.ea_series, arguments)


@causals
@pytest.mark.parametrize("expansion", [Taylor(2), Quadrature(9, 4.0)], ids=str)
def test_gradcheck_passes(causal, expansion):
    q, k, v = inputs(2, 9, 3, dtype=torch.float64)
    shape = 2, 3, expansion.terms
    s, z = draw(*shape, seed=7).requires_grad_(), draw(*shape, seed=8).abs().requires_grad_()
    small = 0.0 if expansion.radius else 0.01  # below every |k|, so that the shift is constant
    shift = torch.full((2, 3), small, dtype=torch.float64)

    def op(q, k, v, s, z):
        state = State(s, z, shift, expansion)
        options = dict(expansion=expansion, causal=causal, state=state, return_state=True)
        y, state = ea_series(q, k, v, **options)
        return y, state.s, state.z

    torch.autograd.gradcheck(op, (q, k, v, s, z))


@causals
@every_backend
@both
def test_compile_needs_no_graph_break(backend, causal, expansion):
    options = dict(expansion=expansion, causal=causal, return_state=True, backend=backend)

    def model(q, k, v):
        y, state = ea_series(q, k * 0.5, v, **options)
        return y.square().sum() + state.s.sum()

    eager, compiled = inputs(2, 30, 5), inputs(2, 30, 5)
    torch._dynamo.reset()
    model(*eager).backward()
    torch.compile(model, fullgraph=True)(*compiled).backward()
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@both
def test_compile_supports_steps_masks_and_packed_calls(expansion):
    q, k, v = (draw(1, 12, 5, seed=i).float() for i in range(3))
    mask, cu = torch.rand(1, 12) > 0.5, torch.tensor([0, 5, 12], dtype=torch.int32)

    def model(q, k, v, mask, cu, state):
        y = ea_series(q, k, v, expansion=expansion, causal=True, key_mask=mask, cu_seqlens=cu)
        t, state = ea_series_step(q[:, 0], k[:, 0], v[:, 0], state)
        return y.sum() + t.sum() + readout(q, state).sum()

    torch._dynamo.reset()
    arguments = (q, k, v, mask, cu, State.zeros(1, 5, expansion=expansion))
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(*arguments), model(*arguments))


def test_dynamic_compile_does_not_recompile_for_new_lengths():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: ea_series(q, k, v, causal=True) * 2, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (40, 41, 77):
            q, k, v = (draw(2, length, 5, seed=i).float() for i in range(3))
            torch.testing.assert_close(compiled(q, k, v), ea_series(q, k, v, causal=True) * 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_autocast_keeps_the_dtype_of_the_inputs(dtype):
    project = torch.nn.Linear(6, 18)
    x = torch.randn(2, 9, 6)
    with torch.autocast("cpu", dtype):
        q, k, v = project(x).chunk(3, -1)
        assert q.dtype == dtype
        y = ea_series(q, k, v, causal=True)
        assert y.dtype == dtype
        mixed = ea_series(q, k.float(), v, causal=True)
        assert mixed.dtype == torch.float32
    y.float().sum().backward()
    assert project.weight.grad.isfinite().all() and project.weight.grad.any()


def test_inference_mode_and_no_grad_give_equal_outputs():
    q, k, v = inputs(2, 30, 5)
    y = ea_series(q, k, v, causal=True)
    with torch.inference_mode():
        assert torch.equal(ea_series(q, k, v, causal=True), y)
        token = q[:, 0], k[:, 0], v[:, 0]
        ea_series_step(*token, State.zeros(2, 5))
    with torch.no_grad():
        quiet = ea_series(q, k, v, causal=True)
    assert torch.equal(quiet, y) and not quiet.requires_grad


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_equal_gradients(reentrant):
    plain, saved = inputs(2, 30, 5), inputs(2, 30, 5)

    def op(q, k, v):
        return ea_series(q, k, v, causal=True)

    op(*plain).square().sum().backward()
    checkpoint(op, *saved, use_reentrant=reentrant).square().sum().backward()
    for a, b in zip(plain, saved, strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("order", [0, 6])  # with order 0 the gradient of q is zero
@pytest.mark.parametrize("wanted", ["q", "k", "v", "qkv"])
@every_backend
def test_every_input_that_requires_a_gradient_gets_one(backend, wanted, order):
    given = dict(zip("qkv", (x.detach() for x in inputs(2, 20, 5)), strict=True))
    for name in wanted:
        given[name].requires_grad_()
    ea_series(**given, order=order, causal=True, backend=backend).sum().backward()
    assert all(given[name].grad is not None for name in wanted)
    assert order or "q" not in wanted or not given["q"].grad.any()


@pytest.mark.parametrize("op", [ea, ea_series], ids=["ea", "ea_series"])
def test_second_and_forward_mode_derivatives_raise(op):
    q, k, v = inputs(1, 5, 3)
    (grad,) = torch.autograd.grad(op(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises((NotImplementedError, RuntimeError), match="second derivative"):
        grad.sum().backward()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q.detach(), torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            op(dual, k, v, causal=True)


def _in_child(queue, inputs):
    y = ea_series(*inputs, causal=True)
    queue.put(float(y.numpy().sum()))  # PyTorch's own sum would hang in the child


def test_forked_child_does_not_hang():
    """OpenMP does not survive fork: the kernels must not wait for threads of the parent."""
    torch.set_num_threads(2)
    inputs = [draw(2, 400, 300, seed=i).float() for i in range(3)]
    y = ea_series(*inputs, causal=True)  # starts the parent's OpenMP threads
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, inputs), daemon=True)
    child.start()
    total = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert total == pytest.approx(float(y.sum()), rel=1e-4)


class Sequences(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        q, k, v = (draw(1, 300, 200, seed=index + i).float() for i in range(3))
        return ea_series(q, k, v, causal=True)


def test_data_loader_workers_can_call_the_operator():
    torch.set_num_threads(2)
    direct = [Sequences()[i] for i in range(4)]  # starts the parent's OpenMP threads
    options = dict(batch_size=None, num_workers=2, multiprocessing_context="fork")
    loaded = list(torch.utils.data.DataLoader(Sequences(), **options))
    assert all(torch.equal(a, b) for a, b in zip(direct, loaded, strict=True))


@pairwise(
    "with_, expansion, causal",
    ["state", "mask", "mask state"],
    [Taylor(4), Quadrature(9)],
    [False, True],
)
def test_exported_program_consists_of_plain_operators(causal, with_, expansion):
    mask, state = "mask" in with_, "state" in with_

    class Model(torch.nn.Module):
        def forward(self, q, k, v, key_mask=None, state=None):
            options = dict(expansion=expansion, causal=causal, key_mask=key_mask, state=state)
            return ea_series(q, k, v, **options, return_state=True)

    def arguments(B, L):
        q, k, v = (draw(B, L, 5, seed=i).float() for i in range(3))
        rng = torch.Generator().manual_seed(1)
        key_mask = torch.rand(B, L, generator=rng) > 0.3 if mask else None
        earlier = _earlier(B, expansion) if state else None
        return dict(q=q, k=k, v=v, key_mask=key_mask, state=earlier)

    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=4096)
    token = {0: batch, 1: length}
    shapes = dict(q=token, k=token, v=token)
    shapes["key_mask"] = token if mask else None
    shapes["state"] = [{0: batch}] * 3 if state else None
    program = torch.export.export(Model(), (), arguments(2, 12), dynamic_shapes=shapes)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any(name.startswith("eattn") for name in names)
    for B, L in ((2, 12), (1, 5), (3, 200)):
        given = arguments(B, L)
        got, want = program.module()(**given), Model()(**given)
        assert got[1].expansion == expansion
        torch.testing.assert_close(tree_leaves(got), tree_leaves(want), rtol=1e-4, atol=1e-4)


@both
@pytest.mark.parametrize("decay", [None, -torch.rand(5)], ids=["plain", "decay"])
def test_exported_step_contains_no_scan(expansion, decay):
    class Step(torch.nn.Module):
        def forward(self, q, k, v, state):
            y, state = ea_series_step(q, k, v, state, log_decay=decay)
            return y, state if decay is None else unshifted(state)

    def arguments(B):
        return *(draw(B, 5, seed=i).float() for i in range(3)), _earlier(B, expansion)

    rows = {0: torch.export.Dim("batch")}
    shapes = (rows, rows, rows, [rows] * 3)
    program = torch.export.export(Step(), arguments(3), dynamic_shapes=shapes)
    names = [str(node.target) for node in program.graph.nodes]
    assert not any("index_select" in name for name in names)
    for B in (1, 3, 7):
        got, want = program.module()(*arguments(B)), Step()(*arguments(B))
        torch.testing.assert_close(tree_leaves(got), tree_leaves(want), rtol=1e-5, atol=1e-5)


def _earlier(batch, expansion) -> State:
    return accumulate(*(draw(batch, 6, 5, seed=i).float() for i in range(2)), expansion=expansion)


def test_lazily_negated_view_keeps_its_sign():
    x = torch.randn(1, 8, 4)
    k = torch.fft.fft(x, dim=1).conj().imag
    assert k.is_neg()
    assert torch.equal(ea_series(x, k, x, causal=True), ea_series(x, k.clone(), x, causal=True))


def test_compiled_call_rejects_wrong_offsets():
    q = torch.randn(1, 8, 4)
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, cu: ea_series(q, q, q, causal=True, cu_seqlens=cu))
    with pytest.raises(ValueError, match="cu_seqlens must run from 0 to L = 8"):
        compiled(q, torch.tensor([0, 100_000_000], dtype=torch.int32))


@pytest.mark.parametrize("mode", ["meta", "fake", "proxy"])
@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@both
def test_operator_accepts_tensors_without_values(mode, packed, expansion):
    def call(x, cu):
        options = {"cu_seqlens": cu} if packed else {"key_mask": x[..., 0] == x[..., 0]}
        y = ea_series(x, x, x, expansion=expansion, causal=True, **options)
        return (y, *torch.autograd.grad(y.sum(), x)) if x.requires_grad else (y,)

    x, cu = torch.randn(1, 8, 4), torch.tensor([0, 3, 8], dtype=torch.int32)
    for wanted in (False, True):
        x.requires_grad_(wanted)
        if mode == "proxy":
            result = make_fx(call)(x, cu)(x, cu)
        elif mode == "fake":
            with FakeTensorMode() as fake:
                result = call(fake.from_tensor(x), fake.from_tensor(cu))
        else:
            meta = x.detach().to("meta").requires_grad_(wanted)
            result = call(meta, cu.to("meta"))
        assert [tuple(y.shape) for y in result] == [(1, 8, 4)] * (1 + wanted)


def test_shift_of_a_state_gets_no_gradient():
    q = torch.randn(1, 8, 4)
    _, state = ea_series(q, q, q, causal=True, return_state=True)
    state.shift.requires_grad_()
    y = ea_series(q, q, q, causal=True, state=state)
    assert not y.requires_grad
