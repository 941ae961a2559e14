"""Assisted generation, following transformers' tests of assisted decoding.

Each test of transformers that applies to a causal text model has an equivalent here: greedy
decoding with a random and with the same assistant, prompt lookup, sampling, `logits_to_keep`, the
end of text within a draft, schedules of the number of drafts, and an assistant with another
tokenizer. These tests do not apply:

- encoder-decoder models, with a shared or separate encoder: EA models have no encoder;
- keyword arguments of multimodal models, such as pixel values: EA models read text;
- model and assistant on different devices: needs a GPU;
- early exit (`assistant_early_exit`), multi-token prediction (`use_mtp`) and DFlash: EA models have
  no heads for these, so the options are refused;
- the assistant of Gemma, which shares keys and values with its model;
- a static cache: EA models refuse `cache_implementation`;
- attention outputs: a state has no attention weights;
- several rows or return sequences: transformers refuses them for every model;
- its unit tests of token translation and of candidate generators, which involve no model.
"""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import MIXERS, VOCAB, ids, letters
from hf_helpers import make as made
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.testing import assert_close
from transformers import PreTrainedTokenizerFast
from transformers.generation import GenerateDecoderOnlyOutput

from eattn.hf import EACache, EAForCausalLM
from eattn.hf.lookup import AdaptiveLookup

LOOKUP = dict(prompt_lookup_num_tokens=4)
PERIOD = 11  # tokens after which the training text repeats


def make(**changes):
    return made(tie_word_embeddings=False, **changes)


def generate(model, tokens, *, new=14, **options):
    torch.manual_seed(3)
    options = dict(do_sample=False, max_new_tokens=new, min_new_tokens=new) | options
    return model.generate(tokens, **options)


def repeated(seed=1):
    """Return a prompt whose last tokens occurred before, [1, 15]."""
    return torch.cat([ids(1, 9, seed=seed), ids(1, 6, seed=seed)], 1)


def count_calls(model):
    """Return a list to which every call of the model appends its number of tokens."""
    calls = []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    return calls


@pytest.fixture(scope="module")
def trained() -> EAForCausalLM:
    """Train a small model on texts that repeat a few tokens."""
    model = make(hidden_size=24).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(60):
        tokens = ids(8, PERIOD, seed=step).repeat(1, 3)
        logits = model(tokens[:, :-1]).logits
        loss = F.cross_entropy(logits[:, PERIOD:].flatten(0, 1), tokens[:, PERIOD + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def test_lookup_gives_same_tokens_for_20_prompts(trained):
    calls = count_calls(trained)
    plain, drafted = 0, 0
    for seed in range(20):
        prompt = ids(1, PERIOD, seed=100 + seed).repeat(1, 2)
        want = generate(trained, prompt, new=24)
        plain += len(calls)
        calls.clear()
        assert torch.equal(generate(trained, prompt, new=24, prompt_lookup_num_tokens=8), want)
        drafted += len(calls)
        calls.clear()
    assert plain == 20 * 24 and drafted < 0.8 * plain


@pytest.mark.parametrize(
    ("mixer", "way"),
    [
        *((mixer, "lookup") for mixer in MIXERS),
        *((mixer, "random assistant") for mixer in ("ea-6+decay", "ea-q65r16+norm", "sa")),
        *((mixer, "same assistant") for mixer in ("ea-6+decay", "deltanet", "sa")),
    ],
)
def test_assisted_generation_matches_greedy_search(mixer, way):
    model = make(mixer=mixer)
    drafts = {
        "lookup": LOOKUP,
        "random assistant": dict(assistant_model=make(mixer="ea-2", hidden_size=9)),
        "same assistant": dict(assistant_model=model),
    }[way]
    kept = dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
    want = generate(model, repeated(), **kept)
    got = generate(model, repeated(), output_hidden_states=True, **kept, **drafts)
    assert isinstance(got, GenerateDecoderOnlyOutput)
    assert torch.equal(got.sequences, want.sequences)
    assert_close(torch.stack(got.logits), torch.stack(want.logits), rtol=1e-5, atol=1e-5)
    assert len(got.hidden_states) == len(got.scores) == 14
    cache = got.past_key_values
    assert cache.get_seq_length() == 15 + 14 - 1 and cache.rollback == 64
    tokens = ids(1, 3, seed=8)  # the returned cache has read exactly the returned tokens but one
    with torch.no_grad():
        later = model(torch.cat([got.sequences[:, -1:], tokens], 1), past_key_values=cache).logits
        whole = model(torch.cat([got.sequences, tokens], 1)).logits
    assert_close(later, whole[:, -4:], rtol=1e-10, atol=1e-10)


def test_drafts_are_read_in_one_call():
    model = make()
    calls = count_calls(model)
    generate(model, repeated(), **LOOKUP)
    assert calls[0] == 15 + 4 and sum(calls) > 15 + 14 - 1 and max(calls[1:]) > 1
    calls.clear()
    generate(model, repeated(), assistant_model=make(mixer="ea-2"))
    assert max(calls[1:]) > 1


def test_lookup_drafts_fewer_tokens_after_rejection():
    model = make()
    calls = count_calls(model)
    prompt = torch.cat([ids(1, 20), ids(1, 20)], 1)
    generate(model, prompt, prompt_lookup_num_tokens=10)
    assert calls[0] == 40 + 10 and all(count <= 5 for count in calls[1:])


def test_drafts_grow_with_success_and_pause_after_failure():
    class Repeat:
        num_output_tokens = 6

        def get_candidates(self, tokens):
            return torch.cat([tokens, tokens[:, : self.num_output_tokens]], 1), None

    lookup, tokens, drafted = AdaptiveLookup(Repeat()), ids(1, 9), []
    # Shares of the drafts that are accepted, until the drafts pause after two failures
    for share in (1, 0.5, 1, 1, 0, 0, 0, 0, 0, 1, 1):
        count = lookup.get_candidates(tokens)[0].shape[1] - 9
        drafted.append(count)
        scores = torch.zeros(1, count + 1, VOCAB)
        lookup.update_candidate_strategy(tokens, scores, int(share * count))
    assert drafted == [6, 6, 4, 6, 6, 0, 4, 0, 0, 4, 6]


@pytest.mark.parametrize("drafts", ["lookup", "assistant"])
def test_sampling_with_drafts_follows_the_distribution(drafts):
    model = make()
    options = dict(do_sample=True, top_k=0, temperature=1.0, max_new_tokens=2, min_new_tokens=2)
    options |= LOOKUP if drafts == "lookup" else dict(assistant_model=make(mixer="ea-2"))
    prompt, counts = repeated(), torch.zeros(VOCAB)
    torch.manual_seed(0)
    for _ in range(100):
        counts[model.generate(prompt, **options)[0, 15]] += 1
    with torch.no_grad():
        want = model(prompt).logits[0, -1].softmax(-1)
    assert float((counts / 100 - want).abs().sum() / 2) < 0.3  # total variation


def test_logits_to_keep_does_not_change_assisted_tokens():
    model = make()
    want = generate(model, repeated())
    for kept in (0, 1):
        assert torch.equal(generate(model, repeated(), logits_to_keep=kept, **LOOKUP), want)


@pytest.mark.parametrize("drafts", ["lookup", "assistant"])
def test_assisted_generation_stops_at_eos_token(drafts):
    model = make()
    greedy = generate(model, repeated())
    end = int(greedy[0, 20])
    options = dict(min_new_tokens=0, eos_token_id=end)
    want = generate(model, repeated(), **options)
    options |= LOOKUP if drafts == "lookup" else dict(assistant_model=model)
    got = generate(model, repeated(), **options)
    assert torch.equal(got, want) and got.shape[1] <= 21


@pytest.mark.parametrize("schedule", ["constant", "heuristic", "heuristic_transient"])
def test_number_of_drafts_may_exceed_the_default_rollback(schedule):
    model, assistant = make(), make()  # the same weights, so that all drafts are accepted
    config, first = assistant.generation_config, 80 if schedule == "constant" else 63
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = first, schedule
    config.assistant_confidence_threshold = 0.0
    # An assistant would take token 0, which is also the padding token, for padding.
    options = dict(new=135, suppress_tokens=[0])
    want = generate(model, repeated(), **options)
    assert torch.equal(generate(model, repeated(), assistant_model=assistant, **options), want)
    assert config.num_assistant_tokens == (first + 6 if schedule == "heuristic" else first)


def test_lookup_of_more_tokens_than_the_default_rollback():
    model = make()
    prompt = torch.cat([ids(1, 99), ids(1, 3)], 1)
    options = dict(prompt_lookup_num_tokens=90, return_dict_in_generate=True)
    got = generate(model, prompt, **options)
    assert torch.equal(got.sequences, generate(model, prompt))
    assert got.past_key_values.rollback == 90


@pytest.mark.parametrize("sample", [False, True])
def test_assistant_may_have_another_tokenizer(sample):
    vocabulary = {"<pad>": 0, "?": 1} | {chr(123 - i): i + 1 for i in range(1, 27)} | {"é": 28}
    reversed_letters = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    reversed_letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    reversed_letters.decoder = decoders.Fuse()
    other = PreTrainedTokenizerFast(tokenizer_object=reversed_letters, pad_token="<pad>")
    tokenizer = letters()
    model = make(vocab_size=len(tokenizer) + 1)
    assistant = make(vocab_size=len(other), mixer="ea-2")
    prompt = tokenizer("helloworld", return_tensors="pt")["input_ids"]
    pair = dict(assistant_model=assistant, tokenizer=tokenizer, assistant_tokenizer=other)
    got = generate(model, prompt, do_sample=sample, **pair)
    assert got.shape == (1, 24)
    assert sample or torch.equal(got, generate(model, prompt))


@pytest.mark.parametrize("rollback", [0, 4, 200])
def test_drafts_continue_from_a_given_cache(rollback):
    model, prompt = make(), repeated()
    cache = EACache(2, rollback)
    with torch.no_grad():
        model(prompt[:, :10], past_key_values=cache)
    got = generate(model, prompt, past_key_values=cache, **LOOKUP)
    assert torch.equal(got, generate(model, prompt))
    assert cache.seen == 28 and cache.rollback == max(rollback, 64)
    again = generate(model, got, past_key_values=cache, new=5, **LOOKUP)
    assert torch.equal(again, generate(model, prompt, new=19))


def test_padded_prompt_does_not_change_assisted_tokens():
    model, prompt = make(max_position_embeddings=60), repeated()
    want = generate(model, prompt)[:, 15:]
    tokens, mask = F.pad(prompt, (3, 0)), F.pad(torch.ones_like(prompt), (3, 0))
    assert torch.equal(generate(model, tokens, attention_mask=mask, **LOOKUP)[:, 18:], want)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(assistant_early_exit=1), "does not support assistant_early_exit: use prompt_lookup"),
        (dict(use_mtp=True), "does not support use_mtp: use prompt_lookup"),
        (dict(use_cache=False, **LOOKUP), "requires `use_cache=True`"),
        (dict(num_return_sequences=2, **LOOKUP), "num_return_sequences"),
        (dict(cache_implementation="static", **LOOKUP), "must be omitted, got 'static'"),
    ],
    ids=str,
)
def test_unsupported_options_of_assisted_generation_raise(options, text):
    with pytest.raises(ValueError, match=text):
        generate(make(), repeated(), **options)


def test_several_rows_with_drafts_raise():
    with pytest.raises(ValueError, match="batch_size = 1"):
        generate(make(), ids(2, 5), **LOOKUP)
