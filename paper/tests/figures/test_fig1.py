"""Figure 1: weights and outputs are those of the operator, entropies those of the weights."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import eattn
from eattn.ops import reference
from paper.figures import fig1
from paper.harness.runlog import Row, RunLog, find_row

MECHANISM = pytest.mark.parametrize("name", fig1.MECHANISMS)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(fig1.rows(fig1.Plan(), RunLog(None, "fig1")))


def operator(name: str, *qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.unsqueeze(0) for x in qkv)
    y = eattn.ea(q, k, v) if name == "EA" else eattn.ea_series(q, k, v, order=int(name[3:]))
    return y.squeeze(0)


@pytest.mark.parametrize("name", fig1.FORMS)
def test_outputs_are_those_of_the_operator_and_of_the_weights(rows, name):
    row = find_row(rows, what="weights", who=name)
    expected = operator(name, *fig1.tensors(1.0))[:, row["channel"]]
    assert_close(torch.tensor(row["y"], dtype=torch.float64), expected, rtol=0, atol=1e-5)
    y = np.array(row["weights"]) @ np.array(find_row(rows, what="inputs")["v"])
    np.testing.assert_allclose(row["y"], y, atol=1e-3)


def test_scores_and_weights_follow_from_q_and_k(rows):  # Eq. 1, Eq. 2
    q, k = (np.array(find_row(rows, what="inputs")[name]) for name in "qk")
    o = find_row(rows, what="scores")["o"]
    np.testing.assert_allclose(o, -((q[:, None] - k) ** 2), rtol=1e-3, atol=1e-5)
    weights = np.exp(o) / np.exp(o).sum(1, keepdims=True)
    np.testing.assert_allclose(find_row(rows, who="EA")["weights"], weights, rtol=2e-2)


@pytest.mark.parametrize("sigma", [0.5, 8.0])
@MECHANISM
def test_weights_are_positive_and_sum_to_one(name, sigma):
    q, k, _ = fig1.tensors(sigma)
    weights = fig1.MECHANISMS[name](q, k)
    assert bool((weights >= 0).all())
    assert_close(weights.sum(1), torch.ones_like(weights[:, 0]))


@pytest.mark.parametrize(("name", "literal"), [("SA", reference.sa), ("LA", reference.la)])
def test_weights_of_a_head_match_the_reference(name, literal):
    """With the identity as values the output is the weights."""
    q, k, _ = fig1.tensors(1.0)
    scale = math.sqrt(fig1.D) if name == "SA" else 1.0  # the reference does not scale
    v = torch.eye(fig1.L, dtype=torch.float64)
    expected = literal(q.unsqueeze(0) / scale, k.unsqueeze(0), v.unsqueeze(0))
    assert_close(fig1.MECHANISMS[name](q, k).squeeze(-1), expected.squeeze(0))


def test_inputs_differ_only_in_scale():
    small, large = fig1.tensors(0.5), fig1.tensors(2.0)
    assert [float(x.std()) for x in large] == pytest.approx([2.0, 2.0, 1.0])
    assert_close(4 * small[0], large[0])
    assert_close(small[2], large[2])


@MECHANISM
def test_entropies_match_torch_distributions(rows, name):
    for sigma in (0.5, 1.0, 2.0):
        q, k, _ = fig1.tensors(sigma)
        weights = fig1.MECHANISMS[name](q, k).movedim(1, -1)
        expected = torch.distributions.Categorical(probs=weights).entropy() / math.log(fig1.L)
        row = find_row(rows, what="entropy", who=name, sigma=sigma)
        assert row["entropy"] == pytest.approx(float(expected.mean()), abs=1e-6)
        assert row["p20"] <= row["p80"]


def test_channel_shown_has_the_median_error(rows):
    q, k, v = fig1.tensors(1.0)
    exact, series = operator("EA", q, k, v), operator("EA-6", q, k, v)
    errors = (series - exact).norm(dim=0) / exact.norm(dim=0)
    assert int((errors < errors[find_row(rows, what="inputs")["channel"]]).sum()) == fig1.D // 2


def test_misplaced_weight_is_between_none_and_all():
    first, last = torch.eye(2)[:1, :, None], torch.eye(2)[1:, :, None]
    assert fig1.misplaced(first, first).tolist() == [0.0]
    assert fig1.misplaced(first, last).tolist() == [1.0]


def test_tables_and_chart_show_the_rows(rows):
    errors, entropies = fig1.tables(rows)
    assert errors.title.endswith("σ = 1")
    assert entropies.head[1:] == ["σ = 0.5", "σ = 1", "σ = 2"]
    assert len(entropies.lines) == len(fig1.MECHANISMS)
    assert len(fig1.draw(rows).panels) == 7
    assert entropies.notes[-1].endswith("EA, EA-6, EA-2; no spikier than without q: EA-2.")
    assert "At σ = 2 SA is spikier than EA: entropy 0.54, against 0.69." in [*fig1.losses(rows)]
