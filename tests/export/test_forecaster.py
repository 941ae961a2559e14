"""Graphs of a `Forecaster`: whole series and single values."""

import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')

from export_helpers import CLOSE, SIZES, Exported, assert_same, state_of
from op_helpers import draw
from torch.testing import assert_close

from eattn import export
from eattn.models import Forecaster

FIELDS = ("month", "hour")
C = 2


@pytest.fixture(
    scope="module",
    params=["ea-q5", pytest.param("ea-q25r12", marks=pytest.mark.full), "ea-q65r16"],
)
def model(request):
    torch.manual_seed(0)
    options = dict(calendar=FIELDS, differences=True, residual=True, positions=True, max_len=1000)
    model = Forecaster(C, mixer=request.param, dim=8, depth=1, **options).eval()
    torch.nn.init.normal_(model.head.weight)  # zero by default
    if request.param != "ea-q5":  # queries all over the grid, and some far from all keys
        weight = model.encoder.blocks[0].mixer.in_proj.weight
        weight.data[:8] *= 30
        weight.data[8:16] *= 8
    return model


@pytest.fixture(scope="module")
def sequence(model, tmp_path_factory):
    return Exported(export.sequence(model), tmp_path_factory.mktemp("sequence"))


@pytest.fixture(scope="module")
def step(model, tmp_path_factory):
    return Exported(export.step(model), tmp_path_factory.mktemp("step"))


def series(B, L):
    """Return a random walk and its calendar."""
    x = draw(B, L, C, seed=L).float().cumsum(1) / 10
    times = torch.arange(L) % 12
    return x, torch.stack([times + 1, times], -1).expand(B, L, 2).clone()


@pytest.mark.parametrize(("B", "L"), SIZES)
def test_sequence_matches_the_model_for_any_length(model, sequence, B, L):
    x, times = series(B, L)
    mask = torch.ones(B, L, dtype=torch.bool)
    with torch.no_grad():
        want = model(x, calendar=times)
    for got in sequence.every(x, mask, times):
        assert_close(got["expected"], want, **CLOSE)


def test_padded_rows_continue_from_their_last_valid_value(model, sequence, step):
    x, times = series(3, 9)
    mask = torch.tensor([[1] * 9, [0, 1, 1, 0, 1, 1, 1, 0, 0], [0] * 9], dtype=torch.bool)
    then, when = series(3, 1)
    for whole, one in zip(sequence.forms, step.forms, strict=True):
        out = whole(x, mask, times)
        after = one(then[:, 0], state_of(out), when[:, 0])
        for row in range(3):
            valid = mask[row]
            known, known_times = x[row : row + 1, valid], times[row : row + 1, valid]
            full = torch.cat([known, then[row : row + 1]], 1)
            with torch.no_grad():
                want = model(full, calendar=torch.cat([known_times, when[row : row + 1]], 1))[0]
            assert_close(out["expected"][row, valid], want[:-1], **CLOSE)
            assert_close(after["expected"][row], want[-1], **CLOSE)


def test_a_thousand_steps_match_the_model(model, step):
    x, times = series(2, 1000)
    with torch.no_grad():
        want, after = model(x, calendar=times, return_state=True)
    state = step.graph.empty(2)
    for t in range(1000):
        out = step.onnx(x[:, t], state, times[:, t])
        assert_close(out["expected"], want[:, t], **CLOSE)
        state = state_of(out)
    assert_same(state, step.graph.module.named(after))


def test_recurrence_has_a_step_and_no_sequence():
    model = Forecaster(1, mixer="gru", dim=8, depth=1).eval()
    graph = export.step(model)
    program, state, own = graph.torch().module(), graph.empty(4), None
    for x in torch.randn(3, 4, 1):
        with torch.no_grad():
            got, state = program(x, state)
            want, own = model.step(x, own)
        assert_close(got, want)
    with pytest.raises(ValueError, match="cannot be exported with mixer 'gru'"):
        export.sequence(model)
