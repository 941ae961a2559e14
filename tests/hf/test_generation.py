"""`generate`, following the GenerationTesterMixin of transformers.

`EAForCausalLM` is the only model that generates. Its tests of assisted and prompt lookup decoding
are in test_assisted.py. Those of contrastive search, DoLa, grouped beams, continuous batching, and
static, quantised and offloaded caches are in test_bad_input.py, as these modes are refused; so are
4-D masks. Its tests of padding and packing are in test_model.py. These tests do not apply:

- attention outputs and the shape of keys and values in the cache: the cache holds states;
- eager, SDPA and flash attention: a mixer is not one of transformers' attention functions;
- automatic compilation: it needs a static cache;
- beam search on several devices: it needs a GPU.
"""

import copy
from threading import Thread
from types import NoneType

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import KINDS, MIXERS, SHAPES, VOCAB, ids, letters, padded
from hf_helpers import make as made
from torch.testing import assert_close
from transformers import GenerationMixin, TextIteratorStreamer
from transformers.generation import GenerateBeamDecoderOnlyOutput, GenerateDecoderOnlyOutput

from eattn.hf import EACache, EAForCausalLM

mixers = pytest.mark.parametrize("mixer", MIXERS)
shapes = pytest.mark.parametrize("shape", SHAPES)
WAYS = {
    "greedy": dict(do_sample=False),
    "sampling": dict(do_sample=True, top_k=9, temperature=1.3),
    "beams": dict(do_sample=False, num_beams=3),
    "sampled beams": dict(do_sample=True, num_beams=3, top_k=9),
    "several beams": dict(do_sample=False, num_beams=3, num_return_sequences=2),
    "several samples": dict(do_sample=True, num_return_sequences=2),
}
ways = pytest.mark.parametrize("way", WAYS)


def make(**changes):
    """Make a model with untied embeddings, as a tied one tends to repeat its input."""
    return made(tie_word_embeddings=False, **changes)


def generate(model, tokens=None, *, new=6, **options):
    torch.manual_seed(3)
    return model.generate(tokens, max_new_tokens=new, min_new_tokens=new, **options)


def full(model, tokens=None, **options):
    """Generate and return all outputs."""
    kept = dict(return_dict_in_generate=True, output_logits=True, output_scores=True)
    return generate(model, tokens, **{"do_sample": False, **kept, **options})


@pytest.mark.parametrize(
    ("mixer", "way"), [*((m, "several beams") for m in MIXERS), *(("ea-6", way) for way in WAYS)]
)
def test_cache_does_not_change_generated_tokens(mixer, way):
    model = make(mixer=mixer)
    options = dict(no_repeat_ngram_size=1, **WAYS[way])  # no token repeats
    with_cache = generate(model, ids(2, 5), **options)
    without = generate(model, ids(2, 5), use_cache=False, **options)
    assert torch.equal(with_cache, without)
    rows = 2 * WAYS[way].get("num_return_sequences", 1)
    assert with_cache.shape == (rows, 11)


@mixers
@shapes
def test_greedy_logits_match_one_forward(mixer, shape):
    model = make(mixer=mixer, **SHAPES[shape])
    out = full(model, ids(2, 5), new=12)
    logits = torch.stack(out.logits, 1)
    want = model(out.sequences[:, :-1]).logits[:, 4:]
    assert_close(logits, want.to(logits.dtype), rtol=1e-5, atol=1e-5)
    assert torch.equal(want.argmax(-1), out.sequences[:, 5:])


def test_cache_size_does_not_depend_on_length():
    model = make()
    sizes = [full(model, ids(2, 5), new=new).past_key_values.nbytes for new in (1, 40)]
    assert sizes[0] == sizes[1] > 0


# Without sampling, as all rows share one random generator
@pytest.mark.parametrize("way", [way for way in WAYS if not WAYS[way]["do_sample"]])
@shapes
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_generated_tokens(way, shape, side):
    model = make(**SHAPES[shape])
    rows = [ids(1, n, seed=n)[0] for n in (7, 4, 1)]
    tokens, mask = padded(rows, side)
    for use_cache in (True, False):
        options = dict(attention_mask=mask, use_cache=use_cache, **WAYS[way])
        together = generate(model, tokens, **options)
        alone = [generate(model, row[None], **WAYS[way])[:, len(row) :] for row in rows]
        assert torch.equal(together[:, 7:], torch.cat(alone))


def test_missing_mask_is_inferred_from_padding_token():
    model = make()
    rows = [ids(1, n, seed=n)[0] for n in (7, 4)]
    tokens, mask = padded(rows, "left")
    want = generate(model, tokens, attention_mask=mask, do_sample=False)
    assert torch.equal(generate(model, tokens, do_sample=False), want)


@mixers
@shapes
def test_generation_continues_from_returned_cache(mixer, shape):
    model, tokens = make(mixer=mixer, **SHAPES[shape]), ids(2, 5)
    whole = generate(model, tokens, new=12, do_sample=False)
    first = full(model, tokens, new=5)
    assert first.past_key_values.get_seq_length() == 9  # the last token has not been read
    mask = torch.ones_like(first.sequences)
    options = dict(attention_mask=mask, past_key_values=first.past_key_values)
    second = full(model, first.sequences, new=7, **options)
    assert torch.equal(second.sequences, whole)
    assert second.past_key_values is first.past_key_values


@shapes
@torch.no_grad()
def test_copied_prompt_cache_serves_several_continuations(shape):
    """Each continuation has several tokens and starts from a copy of the padded prompt's cache."""
    model = make(**SHAPES[shape])
    tokens, mask = padded([ids(1, n, seed=n)[0] for n in (6, 3)], "left")
    prompt = model(tokens, attention_mask=mask).past_key_values
    for seed in (4, 5):
        asked = torch.cat([tokens, ids(2, 4, seed=seed)], 1)
        options = dict(
            attention_mask=torch.cat([mask, torch.ones(2, 4, dtype=torch.long)], 1), do_sample=False
        )
        want = generate(model, asked, **options)
        got = generate(model, asked, past_key_values=copy.deepcopy(prompt), **options)
        assert torch.equal(got, want)


def test_position_ids_do_not_change_generated_tokens():
    model, tokens = make(max_position_embeddings=40), ids(2, 5)
    want = generate(model, tokens, do_sample=False)
    positions = torch.arange(5).expand(2, -1)
    assert torch.equal(generate(model, tokens, do_sample=False, position_ids=positions), want)
    tokens, mask = padded([ids(1, n, seed=n)[0] for n in (7, 4)], "left")
    options = dict(attention_mask=mask, do_sample=False)
    want = generate(model, tokens, **options)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    assert torch.equal(generate(model, tokens, position_ids=positions, **options), want)


def test_generation_starts_from_embeddings():
    model, tokens = make(), ids(2, 5)
    embedded = model.get_input_embeddings()(tokens)
    for way in ("greedy", "beams"):
        want = generate(model, tokens, **WAYS[way])
        got = generate(model, inputs_embeds=embedded, **WAYS[way])
        assert torch.equal(got, want[:, 5:])
        # Tokens given as well are returned, not read
        assert torch.equal(generate(model, tokens, inputs_embeds=embedded, **WAYS[way]), want)
        got = generate(model, tokens * 0 + 1, inputs_embeds=embedded, **WAYS[way])
        assert torch.equal(got[:, 5:], want[:, 5:])
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])  # padding on the right
    want = generate(model, tokens, attention_mask=mask, do_sample=False)
    got = generate(model, inputs_embeds=embedded, attention_mask=mask, do_sample=False)
    assert torch.equal(got, want[:, 5:])


def test_generation_from_embeddings_continues_from_returned_cache():
    model = make()
    embed = model.get_input_embeddings()
    embedded = embed(ids(2, 5))
    whole = full(model, inputs_embeds=embedded, new=6)
    first = full(model, inputs_embeds=embedded, new=4)
    read = torch.cat([embedded, embed(first.sequences)], 1)
    second = full(model, inputs_embeds=read, new=2, past_key_values=first.past_key_values)
    assert torch.equal(torch.cat([first.sequences, second.sequences], 1), whole.sequences)
    assert second.past_key_values.get_seq_length() == whole.past_key_values.get_seq_length() == 10


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunked_prefill_does_not_change_generated_tokens(chunk):
    model = make(max_position_embeddings=40)
    tokens, mask = padded([ids(1, n, seed=n)[0] for n in (8, 2)], "left")
    want = generate(model, tokens, attention_mask=mask, do_sample=False)
    got = generate(model, tokens, attention_mask=mask, do_sample=False, prefill_chunk_size=chunk)
    assert torch.equal(got, want)


def test_generation_without_prompt_starts_with_bos_token():
    model = make(bos_token_id=7)
    assert torch.equal(
        generate(model, do_sample=False), generate(model, torch.tensor([[7]]), do_sample=False)
    )


@ways
@pytest.mark.parametrize("use_cache", [True, False])
def test_generate_returns_standard_outputs(way, use_cache):
    model, options = make(), WAYS[way]
    out = full(model, ids(2, 5), output_hidden_states=True, use_cache=use_cache, **options)
    beams = options.get("num_beams", 1) > 1
    assert isinstance(out, GenerateBeamDecoderOnlyOutput if beams else GenerateDecoderOnlyOutput)
    assert isinstance(out.past_key_values, EACache if use_cache else NoneType)
    rows = 2 * (options.get("num_beams") or options.get("num_return_sequences", 1))
    assert [x.shape for x in (*out.scores, *out.logits)] == [(rows, VOCAB)] * 12
    lengths = [5, *([1] * 5 if use_cache else range(6, 11))]
    for states, length in zip(out.hidden_states, lengths, strict=True):
        assert [x.shape for x in states] == [(rows, length, 12)] * 3
    if use_cache:
        assert (len(out.past_key_values), out.past_key_values.get_seq_length()) == (2, 10)
        assert out.past_key_values.batch_size == rows


def test_only_causal_model_inherits_generation_mixin():
    generating = [kind for kind in KINDS if GenerationMixin in kind.__bases__]
    assert generating == [kind for kind in KINDS if kind.can_generate()] == [EAForCausalLM]


def test_other_options_reach_the_model():
    options = dict(output_hidden_states=True, unknown="value", number=42)
    positions = torch.arange(3).expand(2, -1)
    made = make().prepare_inputs_for_generation(ids(2, 3), position_ids=positions, **options)
    assert "input_ids" in made and made.items() >= options.items()


def test_generation_stops_at_eos_token():
    model = make()
    greedy = generate(model, ids(2, 5), do_sample=False)
    end = int(greedy[0, 7])
    out = model.generate(ids(2, 5), max_new_tokens=6, do_sample=False, eos_token_id=end)
    row = out[0, 5:].tolist()
    assert row[row.index(end) + 1 :] == [0] * (len(row) - row.index(end) - 1)


def test_logits_to_keep_selects_logits():
    model = make()
    want = model(ids(2, 5)).logits
    tokens = generate(model, ids(2, 5), do_sample=False)
    assert torch.equal(generate(model, ids(2, 5), do_sample=False, logits_to_keep=0), tokens)
    assert_close(model(ids(2, 5), logits_to_keep=2).logits, want[:, -2:])
    assert_close(model(ids(2, 5), logits_to_keep=torch.tensor([0, 3])).logits, want[:, [0, 3]])


def test_streamed_text_matches_generated_text():
    tokenizer = letters()
    model = make(vocab_size=len(tokenizer))
    batch = tokenizer(["hello"], return_tensors="pt", return_token_type_ids=False)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    options = dict(max_new_tokens=9, do_sample=False)
    thread = Thread(target=model.generate, kwargs={**batch, **options, "streamer": streamer})
    thread.start()
    streamed = "".join(streamer)
    thread.join()
    assert streamed == tokenizer.decode(model.generate(**batch, **options)[0, 5:])


def test_compiled_forward_generates_same_tokens():
    model, tokens = make(), ids(2, 5)
    want = generate(model, tokens, new=4, do_sample=False)
    model.forward = torch.compile(model.forward, backend="eager")
    assert torch.equal(generate(model, tokens, new=4, do_sample=False), want)
