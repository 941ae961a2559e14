"""What cannot work says so, and says what would."""

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import VOCAB, ids, make
from transformers import AutoModelForCausalLM, BertConfig, BertModel, DynamicCache

from eattn.hf import EACache, EAForCausalLM, EAForMaskedLM, EAModel


def raises(error: type[Exception], text: str):
    return pytest.raises(error, match=text)


def test_a_token_beyond_the_vocabulary_is_named():
    model = make()
    for token in (VOCAB, 30000, -1):
        with raises(ValueError, f"from 0 to {VOCAB - 1}, .*got {token}: is the tokenizer"):
            model(torch.tensor([[1, token, 2]]))


def test_an_empty_prompt_is_named():
    model, nothing = make(), torch.zeros(1, 0, dtype=torch.long)
    with raises(ValueError, "at least one token a row, got none"):
        model(nothing)
    with raises(ValueError, "empty|at least one token"):
        model.generate(nothing, max_new_tokens=3)
    with raises(ValueError, "at least one token"):
        model(inputs_embeds=torch.zeros(1, 0, 12).double())
    with raises(ValueError, "no token to go on from in row 1"):
        mask = torch.tensor([[1, 1], [0, 0]])
        model.generate(ids(2, 2), attention_mask=mask, max_new_tokens=3)


def test_a_text_longer_than_the_learned_positions_is_named():
    model = make(max_position_embeddings=10)
    assert model(ids(1, 10)).logits.shape[1] == 10
    with raises(ValueError, "token 11 has no learned position, as max_position_embeddings = 10"):
        model(ids(1, 11))
    with raises(ValueError, "token 11 has no learned position"):
        model(ids(1, 1), past_key_values=model(ids(1, 10)).past_key_values)
    with raises(ValueError, "need 14 positions, and max_position_embeddings = 10"):
        model.generate(ids(1, 5), max_new_tokens=10)  # before the first token, not at the last
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[:, :15] = 0  # which takes up no position
    tokens = ids(2, 20)
    assert model.generate(tokens, attention_mask=mask, max_new_tokens=6).shape == (2, 26)


def test_a_mask_of_wrong_shape_is_named():
    model = make()
    with raises(ValueError, r"attention_mask must be \[B, L\] = \[2, 5\], .* got shape \(2, 4\)"):
        model(ids(2, 5), attention_mask=torch.ones(2, 4))
    with raises(ValueError, r"got shape \(2, 1, 5, 5\)"):
        model(ids(2, 5), attention_mask=torch.ones(2, 1, 5, 5))
    cache = model(ids(2, 5)).past_key_values
    with raises(ValueError, r"\[2, 1\] or \[B, 6\] with the tokens in the cache"):
        model(ids(2, 1), attention_mask=torch.ones(2, 5), past_key_values=cache)


def test_a_cache_that_does_not_fit_is_named():
    model = make()
    with raises(TypeError, "must be an eattn.hf.EACache, got DynamicCache"):
        model(ids(2, 5), past_key_values=DynamicCache())
    with raises(ValueError, "a layer for each of 2, got 3"):
        model(ids(2, 5), past_key_values=EACache(3))
    cache = model(ids(2, 5)).past_key_values
    with raises(ValueError, "holds 2 rows, and these inputs have 3"):
        model(ids(3, 1), past_key_values=cache)
    with raises(ValueError, "has read 5 tokens already and input_ids has 5"):
        model.generate(ids(2, 5), past_key_values=cache, max_new_tokens=2)
    with raises(ValueError, "needs a causal model"):
        make(EAModel, causal=False)(ids(2, 5), past_key_values=EACache(2))


def test_packing_goes_with_neither_mask_nor_cache():
    model, offsets = make(), torch.tensor([0, 2, 5], dtype=torch.int32)
    with raises(ValueError, "cu_seqlens cannot be combined with attention_mask"):
        model(ids(1, 5), cu_seqlens=offsets, attention_mask=torch.ones(1, 5))
    with raises(ValueError, "cu_seqlens cannot be combined with"):
        model(ids(1, 5), cu_seqlens=offsets, past_key_values=EACache(2))
    with raises(ValueError, "in one row, got 2 rows"):
        model(ids(2, 5), cu_seqlens=offsets)
    with raises(ValueError, "must run from 0 to L = 5"):
        model(ids(1, 5), cu_seqlens=offsets[:-1])


def test_tokens_or_embeddings_but_not_both():
    model = make()
    for given in ({}, dict(input_ids=ids(1, 2), inputs_embeds=torch.zeros(1, 2, 12).double())):
        with raises(ValueError, "exactly one of input_ids and inputs_embeds"):
            model(**given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(prompt_lookup_num_tokens=2), "assisted generation does not work.*cannot forget"),
        (dict(penalty_alpha=0.6, top_k=4), "generates by greedy_search, .*not by contrastive"),
        (dict(num_beams=4, num_beam_groups=2, diversity_penalty=1.0), "not by group_beam"),
        (dict(dola_layers="low"), "not by dola"),
        (dict(cache_implementation="static"), "must be left out, got 'static'"),
        (dict(cache_implementation="quantized"), "must be left out, got 'quantized'"),
        (dict(cache_implementation="offloaded"), "must be left out, got 'offloaded'"),
    ],
    ids=str,
)
def test_a_way_of_generating_that_cannot_work_is_named(options, text):
    with raises(ValueError, text):
        make().generate(ids(1, 3), max_new_tokens=3, **options)


def test_a_state_is_not_rolled_back():
    model = make()
    with raises(ValueError, "assisted generation does not work"):
        model.generate(ids(1, 3), max_new_tokens=3, assistant_model=make())
    cache = model(ids(1, 3)).past_key_values
    with raises(NotImplementedError, "cannot forget"):
        cache.crop(-1)
    with raises(NotImplementedError, "cannot forget"):
        cache.activate_past_recording()
    assert not cache.is_croppable


# ---- weights and folders -------------------------------------------------------------------------


def test_weights_that_are_nan_are_named(tmp_path):
    model = make()
    with torch.no_grad():
        model.model.layers[1].ffn[0].weight[2, 3] = torch.nan
    name = "model.layers.1.ffn.0.weight"
    for sample in (False, True):
        with raises(ValueError, f"logits are NaN; the weight {name} holds NaN"):
            model.generate(ids(1, 3), max_new_tokens=2, do_sample=sample)
    model.save_pretrained(tmp_path)
    with raises(ValueError, f"{tmp_path}: the weight {name} holds NaN"):
        EAForCausalLM.from_pretrained(tmp_path)


def test_a_folder_that_is_no_model_is_named(tmp_path):
    for kind in (EAForCausalLM, AutoModelForCausalLM):
        with raises((OSError, ValueError), str(tmp_path)):
            kind.from_pretrained(tmp_path)
    make().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with raises(OSError, "model.safetensors"):
        EAForCausalLM.from_pretrained(tmp_path)


def test_a_folder_with_another_kind_of_model_is_named(tmp_path):
    tiny = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(BertConfig(vocab_size=9, **tiny)).save_pretrained(tmp_path)
    with raises(ValueError, "a model of type 'bert', not 'eattn'"):
        EAForCausalLM.from_pretrained(tmp_path)


def test_a_vocabulary_of_another_size_is_named(tmp_path):
    make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 50}))
    with raises(RuntimeError, "size mismatch|mismatched"):
        EAForCausalLM.from_pretrained(tmp_path)


def test_a_causal_checkpoint_is_no_masked_one(tmp_path):
    make().save_pretrained(tmp_path)
    with raises(ValueError, r"EAForMaskedLM needs .*from_pretrained\(..., causal=False"):
        EAForMaskedLM.from_pretrained(tmp_path)


def test_without_transformers_the_extra_is_named():
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
