"""A cache forgets removed tokens completely, and its copies are independent."""

import copy

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import MIXERS, SHAPES, ids, make, padded
from torch.testing import assert_close

from eattn.hf import EACache

OTHERS = ("ea-6", "ea-6+gate", "ea-q65r16+gate", "aft", "gru", "taylor", "sa-math")
EA = [mixer for mixer in (*MIXERS, *OTHERS) if mixer.startswith("ea-")]
# Tokens to read with rollback = 6, one number per call; negative numbers remove tokens
CALLS = {
    "prompt": (20, -6, 3, -1, 1, -1, 2),
    "steps": (*[1] * 15, -6, *[1] * 4, -3, 1),
    "drafts": (9, 4, -3, 4, -3, 4, -3, 4, -2, 4, -4, 4, 0, 4, -1, 1),
    "everything": (4, -4, 5, 1, -6, 2),
    "twice": (12, 3, -2, -2, 1, -1, -1, 2),
    "long draft": (3, 11, -6, 11, -6, 1),
}
calls = pytest.mark.parametrize("name", CALLS)
pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


def run(model, plan, *, rollback=6, rows=2):
    """Return the cache, the tokens that were kept, and the logits of the last call."""
    cache, kept, logits = EACache(2, rollback), ids(rows, 0), None
    for i, count in enumerate(plan):
        if count > 0:
            new = ids(rows, count, seed=i)
            kept = torch.cat([kept, new], 1)
            logits = model(new, past_key_values=cache).logits
        else:
            cache.crop(count)
            kept = kept[:, : kept.shape[1] + count]
            assert cache.seen == kept.shape[1]
    return cache, kept, logits


def check(model, plan, tolerance):
    _, kept, logits = run(model, plan)
    fresh = EACache(2)  # never read the removed tokens, and reads one token at a time
    want = [model(kept[:, i : i + 1], past_key_values=fresh).logits for i in range(kept.shape[1])]
    want = torch.cat(want[-logits.shape[1] :], 1)
    assert_close(logits, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mixer", [*MIXERS, *OTHERS])
@pytest.mark.parametrize("shape", ["default", "plain"])
def test_removed_tokens_leave_no_trace(mixer, shape):
    options = dict(max_position_embeddings=40) if mixer == "aft" else SHAPES[shape]
    model = make(mixer=mixer, **options)
    for name in ("drafts", "steps"):
        check(model, CALLS[name], 1e-12)


@calls
def test_calls_of_all_sizes_can_be_removed(name):
    check(make(mixer="ea-6+gate", norm="post", max_position_embeddings=60), CALLS[name], 1e-12)
    check(make(mixer="sa+rope"), CALLS[name], 1e-12)


@pytest.mark.parametrize("mixer", EA)
def test_removed_tokens_leave_no_trace_in_float32(mixer):
    model = make(mixer=mixer).float()
    check(model, CALLS["drafts"], 1e-5)
    check(model, CALLS["prompt"], 1e-5)


def test_padded_rows_keep_their_lengths():
    model = make(max_position_embeddings=40)
    tokens, mask = padded([ids(1, n, seed=n)[0] for n in (6, 3)], "left")
    cache = EACache(2, rollback=6)
    model(tokens, attention_mask=mask, past_key_values=cache)
    cache.crop(-4)  # the second row keeps no token
    assert cache.lengths.tolist() == [2, 0] and cache.seen == 2
    later = ids(2, 3, seed=8)
    got = model(later, past_key_values=cache).logits
    assert_close(got[:1], model(torch.cat([tokens[:1, :2], later[:1]], 1)).logits[:, 2:])
    assert_close(got[1:], model(later[1:]).logits)


def test_cache_with_rollback_has_bounded_size():
    model = make()
    state = run(model, (5,), rollback=0)[0].nbytes
    sizes = {n: run(model, (5, *[1] * n), rollback=6)[0].nbytes for n in (30, 31, 36, 90)}
    token = 2 * 2 * 12 * 8  # layers, rows, channels, bytes
    assert all(state < size <= 4 * state + 18 * token for size in sizes.values())
    assert sizes[30] == sizes[36] == sizes[90]
    assert run(model, (5,), rollback=0)[0].layers[0].inputs == []


@pytest.mark.parametrize("mixer", ["sa", "ea"])
def test_keys_and_values_are_counted_once_and_not_copied(mixer):
    model = make(mixer=mixer, short_conv=None)
    cache = EACache(2, rollback=4)
    model(ids(1, 30), past_key_values=cache)
    plain = EACache(2)
    model(ids(1, 30), past_key_values=plain)
    assert cache.nbytes == plain.nbytes + 2 * 4 * 12 * 8  # inputs of four tokens
    memory = cache.layers[0].state.keys.data_ptr()
    cache.crop(-2)
    model(ids(1, 2, seed=4), past_key_values=cache)
    assert cache.layers[0].state.keys.data_ptr() == memory


def test_rows_are_selected_with_their_history():
    model = make()
    cache, kept, _ = run(model, (9, 3))
    cache.batch_select_indices(torch.tensor([1, 0, 1]))
    cache.crop(-4)
    kept, later = kept[[1, 0, 1], :8], ids(3, 2, seed=7)
    cache.batch_select_indices(torch.tensor([True, False, True]))
    got = model(later[:2], past_key_values=cache).logits
    assert_close(got, model(torch.cat([kept[[0, 2]], later[:2]], 1)).logits[:, 8:])


@pytest.mark.parametrize("mixer", ["ea-6+decay", "sa", "deltanet"])
@pytest.mark.parametrize("plan", [(), (9,), (9, 4, -3), (4, -3)], ids=str)
def test_snapshots_do_not_change_with_the_cache(mixer, plan):
    model = make(mixer=mixer)
    cache, kept, _ = run(model, plan)
    snapshot, copied = cache.snapshot(), copy.deepcopy(cache)
    later, other = ids(2, 3, seed=7), ids(2, 5, seed=8)
    want = model(torch.cat([kept, later], 1)).logits[:, kept.shape[1] :]
    model(other, past_key_values=cache)
    cache.crop(-4)
    model(other, past_key_values=cache)
    for _ in range(2):  # a snapshot can be restored more than once
        cache.restore(snapshot)
        assert cache.seen == kept.shape[1]
        assert_close(model(later, past_key_values=cache).logits, want)
    first, second = snapshot.fork(2)
    model(other, past_key_values=first)
    assert_close(model(later, past_key_values=second).logits, want)
    assert_close(model(later, past_key_values=copied).logits, want)
    plain = EACache(2)  # without rollback
    plain.restore(snapshot)
    assert_close(model(later, past_key_values=plain).logits, want)
    second.crop(-3)  # those read after the copy
    assert_close(model(later, past_key_values=second).logits, want)


def test_snapshot_has_the_size_of_a_state():
    cache = run(make(), (9, 1, 1))[0]
    assert cache.snapshot().nbytes == run(make(), (11,), rollback=0)[0].nbytes < cache.nbytes


def test_reset_removes_the_history():
    model = make()
    cache = run(model, (9, 3))[0]
    cache.reset()
    assert (cache.nbytes, cache.seen, cache.rollback) == (0, 0, 6)
    assert_close(model(ids(2, 4), past_key_values=cache).logits, model(ids(2, 4)).logits)


def test_gradients_flow_through_recorded_calls():
    model = make()
    with torch.enable_grad():
        x = model.get_input_embeddings()(ids(1, 8)).detach().requires_grad_()
        cache = EACache(2, rollback=4)
        model(inputs_embeds=x, past_key_values=cache)
        cache.crop(-2)
        got = model(inputs_embeds=x[:, 6:] * 2, past_key_values=cache).logits.sum()
        whole = torch.cat([x[:, :6], x[:, 6:] * 2], 1)
        want = model(inputs_embeds=whole).logits[:, 6:].sum()
        assert_close(*torch.autograd.grad(got, x), *torch.autograd.grad(want, x))


def test_removing_too_many_tokens_raises():
    model, cache = make(), EACache(2, rollback=6)
    model(ids(1, 20), past_key_values=cache)
    with pytest.raises(ValueError, match=r"cannot remove 7 tokens: .*rollback = 6 .*rollback=7\)"):
        cache.crop(-7)
    cache.crop(-4)
    with pytest.raises(ValueError, match=r"cannot remove 3 tokens: .* go back 2 tokens now"):
        cache.crop(-3)
    assert cache.seen == 16 and cache.layers[0].end == 16
    cache.restore(cache.snapshot())
    with pytest.raises(ValueError, match="cannot remove 3 tokens"):
        cache.crop(-3)
    with pytest.raises(ValueError, match="must be minus the number of tokens to remove, got 3"):
        cache.crop(3)
    plain = EACache(2)
    model(ids(1, 5), past_key_values=plain)
    plain.crop(0)
    with pytest.raises(ValueError, match=r"rollback = 0 and can go back 0 tokens now; .*=1\)"):
        plain.crop(-1)


def test_transformers_options_agree_with_rollback():
    model, cache = make(), EACache(2)
    assert not model._is_stateful and not cache.is_croppable
    model(ids(1, 5), past_key_values=cache)
    cache.activate_past_recording()
    assert cache.is_croppable and cache.rollback == 64
    model(ids(1, 3, seed=2), past_key_values=cache)
    with pytest.raises(ValueError, match="go back 3 tokens now"):
        cache.crop(-4)
    cache.crop(-3)
    assert_close(
        model(ids(1, 2, seed=3), past_key_values=cache).logits,
        model(torch.cat([ids(1, 5), ids(1, 2, seed=3)], 1)).logits[:, 5:],
    )
    assert EACache(2, rollback=100).rollback == 100


@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (2.5, TypeError), (True, TypeError)]
)
def test_rollback_must_be_a_number_of_tokens(wrong, error):
    with pytest.raises(error, match="rollback must be"):
        EACache(2, rollback=wrong)


def test_snapshot_of_another_model_raises():
    with pytest.raises(ValueError, match="snapshot must have 2 layers, got 3"):
        EACache(2).restore(EACache(3))
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        EACache(2).fork(0)
