"""A prefix cache returns what was read before, and only that."""

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import MIXERS, ids, make
from torch.testing import assert_close

from eattn.hf import EACache, EAModel, PrefixCache
from eattn.hf.prefix import _Int8

GREEDY = dict(max_new_tokens=5, min_new_tokens=5, do_sample=False)


def read(prefix, text, **options):
    """Generate after a text with a prefix cache; return the tokens and how many were looked up."""
    cache, n = prefix.lookup(text)
    tokens = prefix.model.generate(text, past_key_values=cache, **GREEDY, **options)
    prefix.store(tokens, cache)
    return tokens, n


def edited(text, at):
    text = text.clone()
    text[0, at] = text[0, at] % 42 + 1
    return text


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("options", [{}, dict(prompt_lookup_num_tokens=3)], ids=str)
def test_edited_text_is_read_from_the_snapshot_before_the_edit(mixer, options):
    model, text = make(mixer=mixer, tie_word_embeddings=False), ids(1, 37)
    prefix = PrefixCache(model, every=8)
    tokens, n = read(prefix, text, **options)
    assert n == 0 and torch.equal(tokens, model.generate(text, **GREEDY))
    for at, want in ((36, 32), (20, 16), (8, 8), (7, 0)):
        other = edited(text, at)
        got, n = read(prefix, other, **options)
        assert n == want and torch.equal(got, model.generate(other, **GREEDY))


def test_continued_text_is_read_from_its_end():
    model = make(tie_word_embeddings=False)
    prefix = PrefixCache(model, every=100)
    tokens, _ = read(prefix, ids(1, 9))
    later = torch.cat([tokens, ids(1, 4, seed=2)], 1)
    got, n = read(prefix, later)
    assert n == 9 + 5 - 1 and torch.equal(got, model.generate(later, **GREEDY))
    assert prefix.lookup(tokens[:, :13])[1] == 0  # one token must be left to read


def test_only_new_tokens_are_read():
    model, calls = make(), []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    prefix = PrefixCache(model, every=8)
    read(prefix, ids(1, 30))
    calls.clear()
    read(prefix, edited(ids(1, 30), 26))
    assert calls == [6, 1, 1, 1, 1]


def test_snapshots_of_removed_tokens_are_not_stored():
    model = make()
    prefix = PrefixCache(model, every=4)
    cache, _ = prefix.lookup(ids(1, 10))
    cache.rollback = 6
    with torch.no_grad():
        model(ids(1, 10), past_key_values=cache)
        cache.crop(-5)
        other = torch.cat([ids(1, 5), ids(1, 6, seed=4)], 1)
        model(other[:, 5:], past_key_values=cache)
        prefix.store(other, cache)
        for text, want in ((ids(1, 10), 4), (other, 8), (torch.cat([other, other], 1), 11)):
            cache, n = prefix.lookup(text)
            assert n == want
            assert_close(
                model(text[:, n:], past_key_values=cache).logits, model(text).logits[:, n:]
            )


@pytest.mark.parametrize("every", [2, 3, 4])
def test_tokens_are_removed_between_snapshots(every):
    model, text = make(), ids(1, 40)
    cache, _ = PrefixCache(model, every=every).lookup(text)
    cache.rollback = 5
    n, calls = 0, (7, -2, 5, -1, 5, -4, 5, -3, 1, -1, 2)
    with torch.no_grad():
        for count in calls:
            if count < 0:
                cache.crop(count)
            else:
                got = model(text[:, n : n + count], past_key_values=cache).logits
                assert_close(got, model(text[:, : n + count]).logits[:, n:], rtol=1e-12, atol=1e-12)
            n += count


def test_least_recently_used_snapshots_go_first():
    model = make()
    size = read_size(model)
    prefix = PrefixCache(model, every=100, max_bytes=2 * size)
    first, second, third = (ids(1, 6, seed=seed) for seed in (1, 2, 3))
    for text in (first, second):
        store(prefix, text)
    assert prefix.lookup(first.repeat(1, 2))[1] == 6  # used after the second
    store(prefix, third)
    found = [prefix.lookup(text.repeat(1, 2))[1] for text in (first, second, third)]
    assert found == [6, 0, 6]
    assert len(prefix) == 2 and prefix.nbytes == 2 * size


def store(prefix, text):
    cache = EACache(2)
    with torch.no_grad():
        prefix.model(text, past_key_values=cache)
    prefix.store(text, cache)


def read_size(model):
    prefix = PrefixCache(model)
    store(prefix, ids(1, 6))
    return prefix.nbytes


def test_lookup_returns_independent_caches():
    model = make()
    prefix = PrefixCache(model)
    store(prefix, ids(1, 6))
    text = torch.cat([ids(1, 6), ids(1, 3, seed=2)], 1)
    with torch.no_grad():
        want = model(text).logits[:, 6:]
        for _ in range(2):
            cache, _ = prefix.lookup(text)
            assert_close(model(text[:, 6:], past_key_values=cache).logits, want)


@pytest.mark.parametrize("mixer", ["ea-6", "ea-6+decay", "ea-q25+gate", "la", "deltanet", "sa"])
def test_int8_snapshots_are_smaller_and_nearly_equal(mixer):
    model = make(mixer=mixer, hidden_size=96).float()
    text, later = ids(1, 200), ids(1, 8, seed=2)
    sizes, logits = [], []
    for int8 in (False, True):
        prefix = PrefixCache(model, int8=int8)
        store(prefix, text)
        cache, n = prefix.lookup(torch.cat([text, later], 1))
        assert n == 200
        with torch.no_grad():
            logits.append(model(later, past_key_values=cache).logits)
        sizes.append(prefix.nbytes)
    exact, rounded = logits
    error = (rounded - exact).square().mean().sqrt() / exact.std()
    assert 3.5 < sizes[0] / sizes[1] < 4 and 0 < error < 0.02


def test_int8_keeps_shape_strides_and_numbers_of_each_group():
    x = torch.randn(2, 33, 7).transpose(1, 2)  # the memory order of a state
    x[:, :, 5] *= 1e-20
    back = _Int8.of(x).decompressed()
    assert back.stride() == x.stride() and back.dtype == x.dtype
    assert_close(back, x, rtol=0, atol=float(x.abs().max()) / 254 * 1.01)
    zeros = torch.zeros(3, 5)
    assert torch.equal(_Int8.of(zeros).decompressed(), zeros)
    for kept in (torch.tensor([1.0, torch.inf]), torch.tensor([True, False])):
        assert torch.equal(_Int8.of(kept), kept)


@pytest.mark.parametrize("change", ["step", "load", "replace", "convert"])
def test_changed_weights_raise(change):
    model = make()
    prefix = PrefixCache(model)
    store(prefix, ids(1, 6))
    if change == "step":
        model(ids(1, 5)).logits.sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    elif change == "load":
        model.load_state_dict(make().state_dict())
    elif change == "replace":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    else:
        model.float()
    text = ids(1, 9)
    with pytest.raises(ValueError, match=r"weights of the model have changed, .* call clear"):
        prefix.lookup(text)
    with pytest.raises(ValueError, match="weights of the model have changed"):
        store(prefix, text)
    prefix.clear()
    assert len(prefix) == prefix.nbytes == prefix.lookup(text)[1] == 0
    store(prefix, text)
    assert len(prefix) == 1


def test_model_without_head_has_snapshots():
    model = make(EAModel)
    prefix = PrefixCache(model, every=4)
    cache, _ = prefix.lookup(ids(1, 10))
    with torch.no_grad():
        model(ids(1, 10), past_key_values=cache)
    prefix.store(ids(1, 10), cache)
    assert prefix.lookup(ids(1, 10))[1] == 8


def test_wrong_inputs_raise():
    model = make()
    with pytest.raises(TypeError, match=r"model must be a model of eattn\.hf, got Linear"):
        PrefixCache(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="model must be causal"):
        PrefixCache(make(EAModel, causal=False))
    with pytest.raises(ValueError, match="max_bytes must be at least 1, got 0"):
        PrefixCache(model, max_bytes=0)
    prefix = PrefixCache(model)
    with pytest.raises(ValueError, match=r"one text, \[1, L\], got shape \(2, 3\)"):
        prefix.lookup(ids(2, 3))
    with pytest.raises(ValueError, match="must have read one text without padding"):
        prefix.store(ids(1, 3), EACache(2))
    cache = EACache(2)
    with torch.no_grad():
        model(ids(1, 5), past_key_values=cache)
    with pytest.raises(ValueError, match="all 5 tokens that the cache has read, got 4"):
        prefix.store(ids(1, 4), cache)
    cache, mask = EACache(2), torch.tensor([[0, 1, 1]])
    with torch.no_grad():
        model(ids(1, 3), attention_mask=mask, past_key_values=cache)
    with pytest.raises(ValueError, match="must have read one text without padding"):
        prefix.store(ids(1, 3), cache)
