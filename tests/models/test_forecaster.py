"""Forecaster: a rollout with the state matches running on the whole prefix, for every mixer."""

import copy
import io

import pytest
import torch
from op_helpers import draw, padded
from torch.testing import assert_close

from eattn.models import Forecaster, ForecasterState
from eattn.nn import MIXERS
from eattn.nn.block import TransformerConfig

mixers = pytest.mark.parametrize("mixer", MIXERS)
# aft has the same position in all rows, so it cannot decode rows of unequal length.
unequal_mixers = pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "aft"])
CONSTANT = [
    "ea-2",
    "ea-6",
    "ea-6+decay",
    "la",
    "taylor",
    "deltanet",
    "la+gate",
    "gru",
    "linear-rnn",
]
FIELDS = ("weekday", "hour")
HORIZON = 5
LENGTHS = [7, 3, 1]
RIGHT = torch.arange(7) < torch.tensor(LENGTHS).unsqueeze(1)
masks = pytest.mark.parametrize("mask", [RIGHT, RIGHT.flip(1)], ids=["right", "left"])
# No options, and all options
options = pytest.mark.parametrize(
    "options",
    [{}, dict(calendar=FIELDS, positions=True, max_len=32, residual=True, differences=True)],
    ids=["plain", "times"],
)


def model_of(mixer: str = "ea-6", channels: int = 2, **changes) -> Forecaster:
    torch.manual_seed(0)
    options = dict(dim=8, depth=2, heads=2) | changes
    return Forecaster(channels, mixer=mixer, **options).double()


def times_for(model: Forecaster, B: int, L: int) -> torch.Tensor | None:
    if model.embed.calendar is None:
        return None
    return torch.randint(0, 7, (B, L, 2), generator=torch.Generator().manual_seed(0))


def take(x: torch.Tensor | None, *index) -> torch.Tensor | None:
    return None if x is None else x[index]


def rerun(model: Forecaster, x: torch.Tensor, horizon: int, times=None) -> torch.Tensor:
    """Forecast by running the model on all values so far, for every new value."""
    L = x.shape[1]
    for n in range(L, L + horizon):
        times_so_far = take(times, slice(None), slice(0, n))
        x = torch.cat([x, model(x, calendar=times_so_far)[:, -1:]], 1)
    return x[:, L:]


@mixers
@options
def test_rollout_matches_rerunning_the_prefix(mixer, options):
    model, x = model_of(mixer, **options), draw(3, 7, 2, seed=0)
    times = times_for(model, 3, 7 + HORIZON)
    whole = model.rollout(x, HORIZON, calendar=times)
    assert_close(whole, rerun(model, x, HORIZON, times), rtol=0, atol=1e-12)
    first = take(times, slice(None), slice(0, 7 + 2))  # in two rollouts
    a, state = model.rollout(x, 2, calendar=first, return_state=True)
    rest = take(times, slice(None), slice(7 + 2, None))
    b = model.rollout(None, HORIZON - 2, calendar=rest, state=state)
    assert_close(torch.cat([a, b], 1), whole)
    single = model.float().rollout(x.float(), HORIZON, calendar=times)
    assert_close(single.double(), whole, rtol=0, atol=1e-5)


@unequal_mixers
@options
@masks
def test_rows_of_unequal_length_forecast_independently(mixer, options, mask):
    model, x = model_of(mixer, **options), draw(3, 7, 2, seed=0)
    known, ahead = times_for(model, 3, 7), times_for(model, 3, HORIZON)
    alone = []
    for b, n in enumerate(LENGTHS):
        row = slice(b, b + 1)
        times = None if known is None else torch.cat([known[row, :n], ahead[row]], 1)
        alone.append(rerun(model, x[row, :n], HORIZON, times))
    times = None if known is None else torch.cat([padded(known, mask, -99), ahead], 1)
    forecast = model.rollout(padded(x, mask, torch.nan), HORIZON, calendar=times, key_mask=mask)
    assert_close(forecast, torch.cat(alone))


@masks
def test_aft_raises_for_rows_of_unequal_length(mask):
    model, x = model_of("aft"), draw(3, 7, 2, seed=0)
    with pytest.raises(ValueError, match="key_mask must be all True to decode with mixer 'aft'"):
        model.rollout(x, HORIZON, key_mask=mask)
    everything = torch.ones_like(mask)
    assert_close(model.rollout(x, HORIZON, key_mask=everything), model.rollout(x, HORIZON))


@mixers
@options
@masks
def test_padding_does_not_change_predictions(mixer, options, mask):
    model, x = model_of(mixer, **options), draw(3, 7, 2, seed=0)
    times = times_for(model, 3, 7)
    masked = None if times is None else padded(times, mask, -99)
    y = model(padded(x, mask, torch.nan), calendar=masked, key_mask=mask)
    for b, n in enumerate(LENGTHS):
        row = slice(b, b + 1)
        assert_close(y[b, mask[b]], model(x[row, :n], calendar=take(times, row, slice(0, n)))[0])
    assert not y[~mask].any()


@mixers
@options
def test_whole_chunks_and_steps_agree(mixer, options):
    model, x = model_of(mixer, **options), draw(3, 7, 2, seed=0)
    times = times_for(model, 3, 7)
    whole = model(x, calendar=times)
    a, state = model(x[:, :4], calendar=take(times, slice(None), slice(0, 4)), return_state=True)
    b = model(x[:, 4:], calendar=take(times, slice(None), slice(4, 7)), state=state)
    assert_close(torch.cat([a, b], 1), whole)
    steps, state = [], None
    for i in range(7):
        y, state = model.step(x[:, i], state, take(times, slice(None), i))
        steps.append(y)
    assert_close(torch.stack(steps, 1), whole)
    assert_close(state.expected, whole[:, -1])
    assert state.seen.tolist() == [7, 7, 7]


@unequal_mixers
def test_rows_without_new_values_keep_their_state(mixer):
    model, x = model_of(mixer), draw(2, 7, 2, seed=0)
    _, state = model(x[:, :4], return_state=True)
    new = torch.tensor([[True, True, True], [False, False, False]])
    forecast = model.rollout(x[:, 4:], HORIZON, key_mask=new, state=state)
    assert_close(forecast[:1], rerun(model, x[:1], HORIZON))
    assert_close(forecast[1:], rerun(model, x[1:, :4], HORIZON))


@pytest.mark.parametrize("mixer", CONSTANT)
@options
def test_state_size_does_not_depend_on_length(mixer, options):
    model = model_of(mixer, **{**options, "max_len": 800})
    sizes = []
    for n in (8, 800):
        state = model(draw(2, n, 2, seed=0), calendar=times_for(model, 2, n), return_state=True)[1]
        sizes.append(state.nbytes)
        own = 2 * 8 + 2 * (2 * 2 * 8)  # seen; last and expected
        assert state.nbytes == state.encoder.nbytes + own
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("mixer", ["ea-6", "sa", "gru"])
def test_select_reorders_and_repeats_rows(mixer):
    model, x = model_of(mixer, positions=True, max_len=16), draw(3, 7, 2, seed=0)
    index = torch.tensor([2, 0, 0, 1])
    _, state = model(x, return_state=True)
    forecast = model.rollout(None, HORIZON, state=state.select(index))
    assert_close(forecast, model.rollout(x, HORIZON)[index])


def test_state_survives_save_and_load():
    model, x = model_of(), draw(3, 7, 2, seed=0)
    _, state = model(x, return_state=True)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    assert isinstance(back, ForecasterState)
    assert_close(model.rollout(None, 2, state=back), model.rollout(x, 2))


@options
@masks
def test_loss_is_mean_squared_error_of_valid_next_values(options, mask):
    model, x = model_of(**options), draw(3, 7, 2, seed=0)
    times = times_for(model, 3, 7)
    errors = []
    for b, n in enumerate(LENGTHS):
        y = model(x[b : b + 1, :n], calendar=take(times, slice(b, b + 1), slice(0, n)))[0]
        errors.append((y[:-1] - x[b, 1:n]).square().flatten())
    masked = None if times is None else padded(times, mask, -99)
    loss = model.loss(padded(x, mask, torch.nan), masked, key_mask=mask)
    assert_close(loss, torch.cat(errors).mean())
    y = model(x, calendar=times)
    assert_close(model.loss(x, times), (y[:, :-1] - x[:, 1:]).square().mean())


@mixers
def test_masked_values_do_not_change_gradients_of_loss(mixer):
    model, x = model_of(mixer), draw(3, 7, 2, seed=0)

    def gradients(fill: float) -> tuple[torch.Tensor, ...]:
        loss = model.loss(padded(x, RIGHT, fill), key_mask=RIGHT)
        return torch.autograd.grad(loss, list(model.parameters()))

    assert all(torch.equal(a, b) for a, b in zip(gradients(0.0), gradients(torch.nan), strict=True))


def test_rows_without_target_do_not_count():
    model, x = model_of(), draw(2, 2, 2, seed=0)
    mask = torch.tensor([[True, True], [False, True]])
    assert_close(model.loss(x, key_mask=mask), model.loss(x[:1]))
    nothing = model.loss(x[1:], key_mask=mask[1:])
    nothing.backward()
    assert nothing == 0 and not any(p.grad.any() for p in model.parameters() if p.grad is not None)


def test_forecaster_is_always_causal():
    assert Forecaster(1, TransformerConfig(dim=8)).config.causal
    assert Forecaster(1, dim=8, causal=True).config.causal
    with pytest.raises(ValueError, match="causal must be True for a forecaster"):
        Forecaster(1, dim=8, causal=False)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, x, s: m(x[..., :1]), ValueError, r"x must be \[B, L, 2\]"),
        (lambda m, x, s: m(x, calendar=x.long()), ValueError, "a model without calendar fields"),
        (lambda m, x, s: m(x, key_mask=RIGHT[:, :2]), ValueError, "key_mask must be"),
        (lambda m, x, s: m(x, state=s.encoder), TypeError, "state must be a ForecasterState"),
        (lambda m, x, s: m(x[:2], state=s), ValueError, "state must have 2 rows like x, got 3"),
        (lambda m, x, s: m.step(x, s), ValueError, r"x_t must be \[B, 2\]"),
        (lambda m, x, s: m.step(x[:, 0, :1], s), ValueError, r"x must be \[B, L, 2\]"),
        (lambda m, x, s: m.step(x[:2, 0], s), ValueError, "state must have 2 rows"),
        (lambda m, x, s: m.rollout(x, 0), ValueError, "horizon must be at least 1, got 0"),
        (lambda m, x, s: m.rollout(x, 2.0), TypeError, "horizon must be an int, got float"),
        (lambda m, x, s: m.rollout(None, 2), ValueError, "state is required if x is None"),
        (
            lambda m, x, s: m.rollout(None, 2, key_mask=RIGHT, state=s),
            ValueError,
            "key_mask must be None if x is None",
        ),
        (lambda m, x, s: m.rollout(x[0], 2), ValueError, r"x must be \[B, L, 2\] or None"),
        (
            lambda m, x, s: m.rollout(x, 2, key_mask=RIGHT & (RIGHT.sum(1) > 1)[:, None]),
            ValueError,
            "a valid value in every row, got none in row 2",
        ),
        (lambda m, x, s: m.loss(x[:, :1]), ValueError, "L >= 2, got L = 1"),
    ],
)
def test_invalid_input_raises(call, error, message):
    model, x = model_of(), draw(3, 7, 2, seed=0)
    with pytest.raises(error, match=message):
        call(model, x, model(x, return_state=True)[1])


def test_calendar_must_cover_series_and_horizon():
    model, x = model_of(calendar=FIELDS), draw(3, 7, 2, seed=0)
    with pytest.raises(ValueError, match=r"calendar must be \[3, 12, 2\] for weekday, hour"):
        model.rollout(x, HORIZON, calendar=times_for(model, 3, 7))
    with pytest.raises(ValueError, match="calendar is missing: this model reads weekday, hour"):
        model.rollout(x, HORIZON)
    with pytest.raises(ValueError, match="calendar is missing"):
        model.step(x[:, 0])
    with pytest.raises(TypeError, match="calendar must be a tensor, got list"):
        model.step(x[:, 0], None, [[1, 2]])


def test_positions_must_cover_series_and_horizon():
    model, x = model_of(positions=True, max_len=10), draw(3, 7, 2, seed=0)
    assert model.rollout(x, 4).shape == (3, 4, 2)
    with pytest.raises(ValueError, match="need 11 positions, but max_len = 10"):
        model.rollout(x, 5)
    with pytest.raises(ValueError, match="L = 11 at start = 0 needs 11 positions"):
        model(draw(3, 11, 2, seed=0))


def test_model_survives_state_dict_and_deepcopy():
    model, x = model_of(calendar=FIELDS, positions=True), draw(3, 7, 2, seed=0)
    times = times_for(model, 3, 7)
    other = Forecaster(2, model.config, calendar=FIELDS, positions=True).double()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x, calendar=times), model(x, calendar=times))
    assert torch.equal(copy.deepcopy(model)(x, calendar=times), model(x, calendar=times))


@pytest.mark.slow
def test_compiled_forecaster_gives_same_values_and_gradients():
    model, x = model_of(calendar=FIELDS, positions=True), draw(3, 7, 2, seed=0)
    times = times_for(model, 3, 7)
    compiled = torch.compile(model, backend="aot_eager")
    y, expected = (
        compiled(x, calendar=times, key_mask=RIGHT),
        model(x, calendar=times, key_mask=RIGHT),
    )
    assert_close(y, expected)
    grads = (torch.autograd.grad(z.pow(3).sum(), list(model.parameters())) for z in (y, expected))
    assert_close(*grads)
    step = torch.compile(model.step, backend="aot_eager")
    with torch.no_grad():
        _, state = model(x[:, :6], calendar=times[:, :6], return_state=True)
        y, state = step(x[:, 6], state, times[:, 6])
    assert_close(y, model(x, calendar=times)[:, -1])
    assert state.seen.tolist() == [7, 7, 7]


@pytest.mark.parametrize("mixer", ["ea-6", "la", "aft"])
@options
def test_rollout_gives_shapes_on_meta_device(mixer, options):
    model = model_of(mixer, **options).to("meta")
    times = times_for(model, 3, 7 + HORIZON)
    times = None if times is None else times.to("meta")
    x, mask = torch.empty(3, 7, 2, device="meta"), RIGHT.to("meta")
    y = model.rollout(x.double(), HORIZON, key_mask=mask, calendar=times)
    assert tuple(y.shape) == (3, HORIZON, 2)


def test_untrained_residual_forecaster_predicts_last_value():
    model, x = model_of(residual=True), draw(3, 7, 2, seed=0)
    assert_close(model(x), x)
    assert_close(model.rollout(x, 4), x[:, -1:].expand(-1, 4, -1))
    torch.nn.init.normal_(model.head.weight)
    plain = model_of()
    plain.load_state_dict(model.state_dict())
    assert_close(model(x), x + plain(x))


def test_differences_are_appended_to_values():
    model, x = model_of(channels=1, differences=True), draw(1, 5, 1, seed=0)
    tokens = model._tokens(x, None, 0)
    assert_close(tokens[0, :, 0], x[0, :, 0])
    assert tokens[0, 0, 1] == 0
    assert_close(tokens[0, 1:, 1], x[0, 1:, 0] - x[0, :-1, 0])


def test_first_difference_of_empty_row_is_zero():
    model, x = model_of(channels=1, differences=True), draw(2, 4, 1, seed=0)
    mask = torch.tensor([[True] * 4, [False] * 4])
    _, state = model(x, key_mask=mask, return_state=True)
    later = draw(2, 3, 1, seed=1)
    assert_close(model(later, state=state)[1:], model(later[1:]))
