"""`eattn.diagnose`: measured errors and the cheapest sufficient expansion."""

import pytest
import torch

from eattn import Quadrature, Taylor, diagnose, ea, ea_series
from eattn.models import Forecaster, SequenceClassifier
from eattn.nn import ElementwiseAttention, make_mixer


def layer(mixer: str = "ea-6", *, scale: float = 1.0, causal: bool = False) -> ElementwiseAttention:
    torch.manual_seed(0)
    made = make_mixer(mixer, 8, causal=causal)
    with torch.no_grad():
        made.in_proj.weight[:16] *= scale / 0.5  # scale the standard deviation of q and k
    return made


def batch(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mixer", ["ea-6+decay", "ea-q9+gate"])
def test_error_with_decay_is_relative_to_decayed_attention(mixer):
    made, x = layer(mixer, causal=True), batch(2, 25, 8)
    mask = torch.arange(25) >= torch.tensor([[0], [4]])
    (found,) = diagnose(made, dict(x=x, key_mask=mask)).layers
    grid = Quadrature(33)  # exact EA to 1e-4
    assert found.errors[made.expansion] > 1e-3
    fine = diagnose(made, dict(x=x, key_mask=mask), candidates=[grid]).layers[0]
    assert fine.errors[grid] < 1e-4 and fine.total == found.total


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixer", ["ea-2", "ea-6", "ea-q9"])
def test_reported_error_matches_the_layer(mixer, causal):
    made, x = layer(mixer, causal=causal), batch(3, 40, 8)
    (found,) = diagnose(made, x).layers
    q, k, v = (part.detach().double() for part in made.qkv(x))
    exact = ea(q, k, v, causal=causal)
    off = ea_series(q, k, v, expansion=made.expansion, causal=causal) - exact
    assert found.total == pytest.approx(float(off.norm() / exact.norm()), rel=1e-6)
    channel = off[..., 3].norm() / exact[..., 3].norm()
    assert float(found.error[3]) == pytest.approx(float(channel), rel=1e-6)
    torch.testing.assert_close(found.q_spread, q.flatten(0, 1).std(0))
    torch.testing.assert_close(found.k_largest, k.abs().amax((0, 1)))


def test_masked_tokens_are_ignored():
    made, x = layer(), batch(2, 30, 8)
    mask = torch.arange(30) < torch.tensor([[30], [20]])
    spoiled = x.masked_fill(~mask.unsqueeze(-1), 1e3)
    (found,), (clean,) = (
        diagnose(made, dict(x=given, key_mask=mask)).layers for given in (spoiled, x)
    )
    assert found.total == clean.total
    assert torch.equal(found.k_spread, clean.k_spread)


@pytest.mark.parametrize(("scale", "tolerance"), [(0.25, 1e-3), (1.0, 0.2), (2.0, 1e-2)])
def test_cheapest_expansion_is_minimal(scale, tolerance):
    made, x = layer(scale=scale), batch(2, 60, 8)
    (found,) = diagnose(made, x, tolerance=tolerance).layers
    enough = found.cheapest(tolerance)
    assert found.errors[enough] <= tolerance
    for other, error in found.errors.items():
        if other.terms < enough.terms and bool(other.radius) == bool(enough.radius):
            assert error > tolerance


def test_small_q_and_k_need_taylor_and_large_ones_quadrature():
    small, large = (diagnose(layer(scale=s), batch(2, 60, 8)).layers[0] for s in (0.25, 1.5))
    assert isinstance(small.cheapest(1e-2), Taylor)
    assert isinstance(large.cheapest(1e-2), Quadrature)
    assert small.q_outside.mean() < 0.01 < large.q_outside.mean()
    assert small.k_outside.mean() < 0.01 < large.k_outside.mean()


def test_off_the_grid_is_reported_for_q_and_k():
    made, x = layer("ea-q25r12"), batch(2, 60, 8)
    with torch.no_grad():
        made.in_proj.weight[:8] *= 30  # queries only
    (found,) = diagnose(made, x).layers
    q, _, _ = made.qkv(x)
    torch.testing.assert_close(found.q_outside, q.abs().gt(12).double().mean((0, 1)))
    assert found.q_outside.mean() > 0.2 and not found.k_outside.any()
    line = str(diagnose(made, x)).splitlines()[1]
    assert f" {float(found.q_outside.mean()):.1%} " in line and " 0.0% " in line


@pytest.mark.parametrize("scale", [0.25, 1.0, 4.0, 16.0])
def test_recommended_grids_hold_q_and_k(scale):
    made, x = layer("ea", scale=scale), batch(4, 100, 8)
    (found,) = diagnose(made, x).layers
    q, k, _ = made.qkv(x)
    size = torch.cat([q, k]).abs()
    for grid, spacing in zip(found.grids, (0.5, 1.0), strict=True):
        assert grid.spacing == spacing
        assert (size < grid.radius - 1.5).double().mean() >= 0.999
        assert (size < grid.radius - 1.5 - spacing).double().mean() < 0.999  # the smallest
    fine, coarse = (found.errors[grid] for grid in found.grids)
    assert fine < (1e-3 if scale < 10 else 0.1)  # at 16, some queries are far from all keys
    assert fine < coarse < 0.3


def test_wide_grid_is_cheapest_for_large_q_and_k():
    (found,) = diagnose(layer(scale=4.0), batch(4, 100, 8)).layers
    assert found.cheapest(1e-2) == found.grids[0]


def test_grid_with_too_many_nodes_is_not_recommended():
    (found,) = diagnose(layer(scale=90.0), batch(2, 60, 8)).layers
    assert [grid.spacing for grid in found.grids] == [1.0]
    (found,) = diagnose(layer(scale=1e3), batch(2, 60, 8)).layers
    assert found.grids == ()


def test_cheapest_is_none_if_only_exact_ea_is_sufficient():
    (found,) = diagnose(layer(scale=30.0), batch(2, 60, 8)).layers
    assert found.cheapest(1e-6) is None


def test_every_layer_is_measured_without_changing_the_model():
    model = SequenceClassifier(3, 2, dim=16, depth=3, mixer="ea-6", dropout=0.5)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    found = diagnose(model, batch(4, 50, 3))
    assert [seen.name for seen in found.layers] == [f"encoder.blocks.{i}.mixer" for i in range(3)]
    assert model.training
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_batch_may_be_a_dict():
    model = Forecaster(1, dim=8, depth=1, calendar=("hour",))
    given = {"x": batch(2, 20, 1), "calendar": torch.zeros(2, 20, 1, dtype=torch.int64)}
    assert len(diagnose(model, given).layers) == 1


def test_exact_ea_has_no_error_and_a_cheapest_expansion():
    (found,) = diagnose(layer("ea", scale=0.25), batch(2, 60, 8)).layers
    assert found.total == 0 and not found.error.any()
    assert not found.q_outside.any() and not found.k_outside.any()
    assert found.cheapest(1e-2) is not None


def test_diagnosis_prints_as_a_table():
    lines = str(diagnose(layer("ea-2"), batch(2, 60, 8), tolerance=0.05)).splitlines()
    assert len(lines) == 5
    assert lines[0].split()[0] == "layer" and " ea-2 " in lines[1]
    assert lines[1].endswith(" ea-q21, ea-q11r5")
    assert "within 0.05" in lines[2] and "99.9%" in lines[4]


def test_model_that_raises_keeps_its_mode_and_no_hooks():
    made = layer().train()
    with pytest.raises(ValueError, match="x must be"):
        diagnose(made, batch(2, 60, 5))
    assert made.training and not made._forward_hooks


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: diagnose(make_mixer("sa", 8), batch(2, 5, 8)), "has no element-wise attention"),
        (lambda: diagnose(layer(), batch(2, 5, 8), tolerance=0), "tolerance must be above 0"),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
