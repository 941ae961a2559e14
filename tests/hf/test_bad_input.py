"""Invalid inputs raise an error that says what is allowed."""

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import PER_TEXT, VOCAB, ids, make
from transformers import AutoModelForCausalLM, BertConfig, BertModel, DynamicCache

from eattn.hf import EACache, EAForCausalLM, EAForMaskedLM, EAForQuestionAnswering, EAModel


def raises(error: type[Exception], text: str):
    return pytest.raises(error, match=text)


def test_token_outside_vocabulary_raises():
    model = make()
    for token in (VOCAB, 30000, -1):
        with raises(ValueError, f"from 0 to {VOCAB - 1}, .*got {token}: use the tokenizer"):
            model(torch.tensor([[1, token, 2]]))


def test_empty_prompt_raises():
    model, nothing = make(), torch.zeros(1, 0, dtype=torch.long)
    with raises(ValueError, "at least one token per row, got an empty prompt"):
        model(nothing)
    with raises(ValueError, "empty|at least one token"):
        model.generate(nothing, max_new_tokens=3)
    with raises(ValueError, "at least one token"):
        model(inputs_embeds=torch.zeros(1, 0, 12).double())
    with raises(ValueError, "a valid token in every row, got none in row 1"):
        mask = torch.tensor([[1, 1], [0, 0]])
        model.generate(ids(2, 2), attention_mask=mask, max_new_tokens=3)


def test_text_longer_than_learned_positions_raises():
    model = make(max_position_embeddings=10)
    assert model(ids(1, 10)).logits.shape[1] == 10
    with raises(ValueError, "token 11 has no learned position, as max_position_embeddings = 10"):
        model(ids(1, 11))
    with raises(ValueError, "token 11 has no learned position"):
        model(ids(1, 1), past_key_values=model(ids(1, 10)).past_key_values)
    with raises(ValueError, "need 14 positions, but max_position_embeddings = 10"):
        model.generate(ids(1, 5), max_new_tokens=10)  # raises before the first token
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[:, :15] = 0  # padding takes up no position
    tokens = ids(2, 20)
    assert model.generate(tokens, attention_mask=mask, max_new_tokens=6).shape == (2, 26)


@pytest.mark.parametrize(
    "kind", [*PER_TEXT, EAForQuestionAnswering], ids=lambda kind: kind.__name__
)
def test_heads_with_one_result_per_text_refuse_packing(kind):
    with raises(ValueError, "one result per text and cannot use cu_seqlens: pad the texts"):
        make(kind)(ids(1, 5), cu_seqlens=torch.tensor([0, 2, 5]))


def test_mask_of_wrong_shape_raises():
    model = make()
    with raises(ValueError, r"attention_mask must be \[B, L\] = \[2, 5\], .* got shape \(2, 4\)"):
        model(ids(2, 5), attention_mask=torch.ones(2, 4))
    with raises(ValueError, r"got shape \(2, 1, 5, 5\)"):
        model(ids(2, 5), attention_mask=torch.ones(2, 1, 5, 5))
    cache = model(ids(2, 5)).past_key_values
    with raises(ValueError, r"\[2, 1\] or \[B, 6\] with the tokens in the cache"):
        model(ids(2, 1), attention_mask=torch.ones(2, 5), past_key_values=cache)


def test_cache_that_does_not_fit_raises():
    model = make()
    with raises(TypeError, "must be an eattn.hf.EACache, got DynamicCache"):
        model(ids(2, 5), past_key_values=DynamicCache())
    for options in ({}, dict(prompt_lookup_num_tokens=2)):
        with raises(TypeError, "must be an eattn.hf.EACache, got DynamicCache"):
            model.generate(ids(1, 5), past_key_values=DynamicCache(), max_new_tokens=2, **options)
    with raises(ValueError, "must have 2 layers like the model, got 3"):
        model(ids(2, 5), past_key_values=EACache(3))
    cache = model(ids(2, 5)).past_key_values
    with raises(ValueError, "must have 3 rows like the inputs, got 2"):
        model(ids(3, 1), past_key_values=cache)
    with raises(ValueError, "has read 5 tokens and input_ids has 5: add at least one token"):
        model.generate(ids(2, 5), past_key_values=cache, max_new_tokens=2)
    with raises(ValueError, "needs a causal model"):
        make(EAModel, causal=False)(ids(2, 5), past_key_values=EACache(2))


def test_packing_with_mask_or_cache_raises():
    model, offsets = make(), torch.tensor([0, 2, 5], dtype=torch.int32)
    with raises(ValueError, "cu_seqlens cannot be combined with attention_mask"):
        model(ids(1, 5), cu_seqlens=offsets, attention_mask=torch.ones(1, 5))
    with raises(ValueError, "cu_seqlens cannot be combined with"):
        model(ids(1, 5), cu_seqlens=offsets, past_key_values=EACache(2))
    with raises(ValueError, "packed in one row, got 2 rows"):
        model(ids(2, 5), cu_seqlens=offsets)
    with raises(ValueError, "must run from 0 to L = 5"):
        model(ids(1, 5), cu_seqlens=offsets[:-1])


def test_exactly_one_of_tokens_and_embeddings_is_required():
    model = make()
    for given in ({}, dict(input_ids=ids(1, 2), inputs_embeds=torch.zeros(1, 2, 12).double())):
        with raises(ValueError, "exactly one of input_ids and inputs_embeds"):
            model(**given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(penalty_alpha=0.6, top_k=4), "does not support contrastive.*: use greedy_search"),
        (
            dict(num_beams=4, num_beam_groups=2, diversity_penalty=1.0),
            "does not support group_beam",
        ),
        (dict(dola_layers="low"), "does not support dola"),
        (dict(cache_implementation="static"), "must be omitted, got 'static'"),
        (dict(cache_implementation="quantized"), "must be omitted, got 'quantized'"),
        (dict(cache_implementation="offloaded"), "must be omitted, got 'offloaded'"),
    ],
    ids=str,
)
def test_unsupported_generation_mode_raises(options, text):
    with raises(ValueError, text):
        make().generate(ids(1, 3), max_new_tokens=3, **options)


def test_continuous_batching_is_refused_up_front():
    model = make()
    with raises(ValueError, "does not support generate_batch .*: use generate with a padded batch"):
        model.generate_batch([[1, 2], [3]], max_new_tokens=2)
    with raises(ValueError, "does not support generate_batch"):
        model.init_continuous_batching()


def test_error_for_nan_names_the_weight(tmp_path):
    model = make()
    with torch.no_grad():
        model.model.layers[1].ffn.up.weight[2, 3] = torch.nan
    name = "model.layers.1.ffn.up.weight"
    for options in ({}, dict(do_sample=True), dict(prompt_lookup_num_tokens=2)):
        with raises(ValueError, f"logits of the model are NaN: the weight {name} contains NaN"):
            model.generate(ids(1, 3), max_new_tokens=2, **options)
    model.save_pretrained(tmp_path)
    with raises(ValueError, f"{tmp_path}: the weight {name} contains NaN"):
        EAForCausalLM.from_pretrained(tmp_path)


def test_folder_without_model_raises(tmp_path):
    for kind in (EAForCausalLM, AutoModelForCausalLM):
        with raises((OSError, ValueError), str(tmp_path)):
            kind.from_pretrained(tmp_path)
    make().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with raises(OSError, "model.safetensors"):
        EAForCausalLM.from_pretrained(tmp_path)


def test_folder_with_another_model_type_raises(tmp_path):
    tiny = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(BertConfig(vocab_size=9, **tiny)).save_pretrained(tmp_path)
    with raises(ValueError, "a model of type 'bert', not 'eattn'"):
        EAForCausalLM.from_pretrained(tmp_path)


def test_vocabulary_of_another_size_raises(tmp_path):
    make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 50}))
    with raises(RuntimeError, "size mismatch|mismatched"):
        EAForCausalLM.from_pretrained(tmp_path)


def test_causal_checkpoint_does_not_load_as_masked_model(tmp_path):
    make().save_pretrained(tmp_path)
    with raises(ValueError, r"EAForMaskedLM needs .*from_pretrained\(..., causal=False"):
        EAForMaskedLM.from_pretrained(tmp_path)


def test_error_without_transformers_names_the_extra():
    code = """
import sys
sys.modules["transformers"] = None
for name in ("eattn.hf", "eattn.lm", "eattn.lm.training"):
    try:
        __import__(name)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count('pip install "eattn[hf]"') == 3
