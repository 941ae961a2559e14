"""What Figure 1 shows is what the operator computes, and its entropies are those of the weights."""

import functools
import json
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import eattn
from eattn import cli
from eattn.ops import reference
from paper.bench.measure import Row
from paper.reproduce import fig1

MECHANISM = pytest.mark.parametrize("name", fig1.MECHANISMS)


@functools.cache
def rows() -> list[Row]:
    return list(fig1.measure(1.0, 0))


def one(what: str, **fields: object) -> Row:
    """The row of this kind with these fields."""
    wanted = {"what": what} | fields
    (row,) = (row for row in rows() if wanted.items() <= row.items())
    return row


def operator(name: str, *qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.unsqueeze(0) for x in qkv)
    y = eattn.ea(q, k, v) if name == "EA" else eattn.ea_series(q, k, v, order=int(name[3:]))
    return y.squeeze(0)


@pytest.mark.parametrize("name", fig1.FORMS)
def test_y_of_the_rows_is_what_the_operator_gives(name):
    row = one("weights", who=name)
    expected = operator(name, *fig1.tensors(1.0, 0))[:, row["channel"]]
    assert_close(torch.tensor(row["y"], dtype=torch.float64), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", fig1.FORMS)
def test_y_follows_from_the_weights_and_values_of_the_rows(name):
    row = one("weights", who=name)
    y = np.array(row["weights"]) @ np.array(one("inputs")["v"])
    np.testing.assert_allclose(row["y"], y, atol=1e-3)


def test_scores_of_the_rows_follow_from_their_q_and_k():  # Eq. 1
    q, k = (np.array(one("inputs")[name]) for name in "qk")
    o = one("scores")["o"]
    np.testing.assert_allclose(o, -((q[:, None] - k) ** 2), rtol=1e-3, atol=1e-5)
    weights = np.exp(o) / np.exp(o).sum(1, keepdims=True)
    np.testing.assert_allclose(one("weights", who="EA")["weights"], weights, rtol=2e-2)


@pytest.mark.parametrize("sigma", [0.5, 1.0, fig1.FACTORS[-1] * fig1.LARGEST])
@MECHANISM
def test_weights_are_positive_and_sum_to_one(name, sigma):
    q, k, _ = fig1.tensors(sigma, 0)
    weights = fig1.MECHANISMS[name](q, k)
    assert bool((weights >= 0).all())
    assert_close(weights.sum(1), torch.ones_like(weights[:, 0]))


@pytest.mark.parametrize(("name", "literal"), [("SA", reference.sa), ("LA", reference.la)])
def test_weights_of_a_head_are_those_of_the_literal_formula(name, literal):
    """With the identity for values the output is the weights."""
    q, k, _ = fig1.tensors(1.0, 0)
    scale = math.sqrt(fig1.D) if name == "SA" else 1.0  # the reference does not scale
    v = torch.eye(fig1.L, dtype=torch.float64)
    expected = literal(q.unsqueeze(0) / scale, k.unsqueeze(0), v.unsqueeze(0))
    assert_close(fig1.MECHANISMS[name](q, k).squeeze(-1), expected.squeeze(0))


def test_q_k_and_v_have_the_deviation_asked_for_and_differ_only_in_scale():
    small, large = fig1.tensors(0.5, 3), fig1.tensors(2.0, 3)
    assert [float(x.std()) for x in large] == pytest.approx([2.0, 2.0, 1.0])
    assert_close(4 * small.q, large.q)
    assert_close(small.v, large.v)


def test_entropy_is_one_when_uniform_and_zero_when_one_key_has_it_all():
    uniform = torch.full((3, 8, 1), 1 / 8)
    one = torch.zeros(3, 8, 1).index_fill(1, torch.tensor(5), 1.0)
    assert_close(fig1.entropy(uniform), torch.ones(3, 1))
    assert_close(fig1.entropy(one), torch.zeros(3, 1))


def test_the_entropy_of_the_series_converges_to_the_exact_one_with_the_order():
    q, k, _ = fig1.tensors(0.5, 0)
    exact = fig1.entropy(fig1.ea(q, k)).mean()
    orders = (0, 2, 6, 12)
    off = [float((fig1.entropy(fig1.ea_series(n)(q, k)).mean() - exact).abs()) for n in orders]
    assert off == sorted(off, reverse=True)
    assert off[-1] < 1e-6 < off[0]


@MECHANISM
def test_entropies_of_the_rows_are_those_of_the_same_tensors(name):
    for sigma in (0.5, 1.0, 2.0):
        q, k, _ = fig1.tensors(sigma, 0)
        weights = fig1.MECHANISMS[name](q, k).movedim(1, -1)
        expected = torch.distributions.Categorical(probs=weights).entropy() / math.log(fig1.L)
        row = one("entropy", who=name, sigma=sigma)
        assert row["entropy"] == pytest.approx(float(expected.mean()), abs=1e-6)
        assert row["p20"] <= row["p80"]


def test_the_channel_shown_has_the_median_error():
    q, k, v = fig1.tensors(1.0, 0)
    exact, series = operator("EA", q, k, v), operator("EA-6", q, k, v)
    errors = (series - exact).norm(dim=0) / exact.norm(dim=0)
    assert int((errors < errors[one("inputs")["channel"]]).sum()) == fig1.D // 2


def test_misplaced_weight_is_none_for_equals_and_all_for_strangers():
    first, last = torch.eye(2)[:1, :, None], torch.eye(2)[1:, :, None]
    assert fig1.misplaced(first, first).tolist() == [0.0]
    assert fig1.misplaced(first, last).tolist() == [1.0]
    assert one("weights", who="EA")["misplaced"] == 0 < one("weights", who="EA-6")["misplaced"]


def test_the_verdict_names_series_no_spikier_than_without_q():
    found = {(name, 1.0): 0.5 for name in fig1.MECHANISMS}
    found |= {("LA", 1.0): 1.0, ("EA-2", 1.0): 0.9, ("EA-0", 1.0): 0.8}
    _, line = fig1.judge(found, [1.0])
    assert "spikier than LA: EA, EA-6, EA-2" in line
    assert line.endswith("without q: EA-2")
    _, line = fig1.judge(found | {("LA", 1.0): 0.1, ("EA-2", 1.0): 0.5}, [1.0])
    assert line.endswith("spikier than LA: none")


def test_the_command_writes_rows_and_pictures_and_prints_the_entropies(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    args = ["reproduce", "fig1", "--sigma", "0.5", "--seed", "3", "--out", str(out)]
    assert cli.main(args) == 0
    assert sorted(path.name for path in out.iterdir()) == ["fig1.jsonl", "fig1.png", "fig1.svg"]
    assert (out / "fig1.jsonl").stat().st_size < 200_000
    found = [json.loads(line) for line in (out / "fig1.jsonl").read_text().splitlines()]
    assert {row["seed"] for row in found} == {3}
    assert all({"commit", "hardware", "torch", "date"} <= set(row) for row in found)
    printed = capsys.readouterr().out
    assert "σ = 0.25" in printed
    for row in found:
        if row["what"] == "entropy":
            assert f"{row['entropy']:.3f}" in printed


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--sigma", "9"], "sigma must be above 0 and at most 4, got 9"),
        (["--sigma", "0"], "got 0"),
        (["--sigma", "nan"], "got nan"),
        (["--sigma", "big"], "'--sigma'"),
        (["--seed", "-1"], "'--seed'"),
    ],
)
def test_bad_options_are_one_line(args, reason, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["reproduce", "fig1", *args, "--out", str(out)]) != 0
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert not out.exists()
