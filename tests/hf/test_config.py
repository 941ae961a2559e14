"""The configuration: BERT's names, checked; and the Auto classes that know it."""

import json

import pytest

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import config
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
)

import eattn
from eattn.hf import (
    EAConfig,
    EAForCausalLM,
    EAForMaskedLM,
    EAForSequenceClassification,
    EAModel,
)

AUTOS = {
    EAModel: AutoModel,
    EAForCausalLM: AutoModelForCausalLM,
    EAForMaskedLM: AutoModelForMaskedLM,
    EAForSequenceClassification: AutoModelForSequenceClassification,
}
kinds = pytest.mark.parametrize("kind", AUTOS, ids=lambda kind: kind.__name__)


@pytest.mark.parametrize(
    "field",
    [
        dict(hidden_size=50),
        dict(num_hidden_layers=1),
        dict(num_attention_heads=5),
        dict(intermediate_size=7),
        dict(vocab_size=3),
        dict(max_position_embeddings=9),
        dict(hidden_dropout_prob=0.3),
        dict(layer_norm_eps=1e-12),
    ],
    ids=str,
)
def test_it_builds_with_any_one_field_of_berts_alone(field):
    (name,) = field
    assert hasattr(BertConfig(), name)
    made = EAConfig(**field)
    assert getattr(made, name) == field[name]
    block = made.block(causal=False)
    assert block.ffn_dim == (field.get("intermediate_size") or 4 * block.dim)


def test_by_default_no_length_is_too_long():
    made = EAConfig()
    assert (made.norm, made.max_position_embeddings, made.short_conv) == ("pre", None, 4)


@pytest.mark.parametrize(("hidden_size", "heads"), [(768, 12), (64, 8), (35, 7), (13, 1)])
def test_heads_divide_the_hidden_size(hidden_size, heads):
    assert EAConfig(hidden_size=hidden_size).num_attention_heads == heads


@pytest.mark.parametrize(
    ("field", "error", "text"),
    [
        (dict(vocab_size=0), ValueError, "vocab_size must be at least 1, got 0"),
        (dict(hidden_size="64"), TypeError, "hidden_size must be an int, got str"),
        (dict(mixer="mamba"), ValueError, "unknown mixer 'mamba'"),
        (dict(mixer="ea-5"), ValueError, "even N"),
        (dict(norm="rms"), ValueError, "norm must be 'post' or 'pre'"),
        (dict(short_conv=0), ValueError, "short_conv must be at least 1"),
        (dict(causal="yes"), TypeError, "causal must be a bool or None, got str"),
        (dict(hidden_dropout_prob=1.5), ValueError, "dropout must be at least 0 and below 1"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(field, error, text):
    with pytest.raises(error, match=text):
        EAConfig(**field)


def test_it_is_stored_and_found_again(tmp_path):
    made = config(mixer="ea-q17", short_conv=None, norm="post", causal=False, num_labels=5)
    made.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, EAConfig)
    assert again.to_diff_dict() == made.to_diff_dict()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "eattn"


@kinds
def test_the_auto_classes_know_every_model(kind):
    assert eattn.hf.EAModel is EAModel  # the root finds the module too
    assert type(AUTOS[kind].from_config(config())) is kind


@kinds
def test_the_class_decides_what_the_config_leaves_open(kind):
    given = config()
    made = kind(given)
    causal = kind in (EAModel, EAForCausalLM)
    assert made.config.causal is causal and given.causal is None
    assert all(layer.config.causal is causal for layer in made.base_model.layers)


def test_a_contradiction_is_named():
    with pytest.raises(ValueError, match="EAForCausalLM needs causal=True"):
        EAForCausalLM(config(causal=False))
    with pytest.raises(ValueError, match="EAForMaskedLM needs causal=False"):
        EAForMaskedLM(config(causal=True))
    assert EAForSequenceClassification(config(causal=True)).config.causal


def test_another_models_config_is_refused(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a model of type 'bert', not 'eattn'"):
        EAConfig.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="config must be an EAConfig, got BertConfig"):
        EAModel(BertConfig())
