"""EAConfig: field names of BERT, checks, and Auto classes."""

import json

import pytest

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import config
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
)

import eattn
from eattn.hf import (
    EAConfig,
    EAForCausalLM,
    EAForMaskedLM,
    EAForQuestionAnswering,
    EAForSequenceClassification,
    EAForTokenClassification,
    EAModel,
)

AUTOS = {
    EAModel: AutoModel,
    EAForCausalLM: AutoModelForCausalLM,
    EAForMaskedLM: AutoModelForMaskedLM,
    EAForSequenceClassification: AutoModelForSequenceClassification,
    EAForTokenClassification: AutoModelForTokenClassification,
    EAForQuestionAnswering: AutoModelForQuestionAnswering,
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
        dict(layer_norm_eps=1.0),
    ],
    ids=str,
)
def test_config_accepts_each_field_of_bert(field):
    (name,) = field
    assert hasattr(BertConfig(), name)
    made = EAConfig(**field)
    assert getattr(made, name) == field[name]
    block = made.block(causal=False)
    assert block.ffn_dim == (field.get("intermediate_size") or 4 * block.dim)


def test_default_config_does_not_limit_length():
    made = EAConfig()
    assert (made.norm, made.max_position_embeddings, made.short_conv) == ("pre", None, 4)


@pytest.mark.parametrize(("hidden_size", "heads"), [(768, 12), (64, 8), (35, 7), (13, 1)])
def test_default_heads_divide_hidden_size(hidden_size, heads):
    assert EAConfig(hidden_size=hidden_size).num_attention_heads == heads


@pytest.mark.parametrize(
    ("field", "error", "text"),
    [
        (dict(vocab_size=0), ValueError, "vocab_size must be at least 1, got 0"),
        (dict(hidden_size="64"), TypeError, "hidden_size must be an int, got str"),
        (dict(mixer="mamba"), ValueError, "unknown mixer 'mamba'"),
        (dict(mixer="ea-5"), ValueError, "even N"),
        (
            dict(hidden_size=30, num_attention_heads=4, mixer="sa"),
            ValueError,
            "mixer 'sa' cannot be built: heads must divide dim = 30, got 4",
        ),
        (dict(mixer="aft"), ValueError, "mixer 'aft' .*: set max_position_embeddings"),
        (dict(norm="rms"), ValueError, "norm must be 'post' or 'pre'"),
        (dict(short_conv=0), ValueError, "short_conv must be at least 1"),
        (dict(causal="yes"), TypeError, "causal must be a bool or None, got str"),
        (dict(hidden_dropout_prob=1.5), ValueError, "dropout must be at least 0 and below 1"),
    ],
    ids=str,
)
def test_invalid_field_raises(field, error, text):
    with pytest.raises(error, match=text):
        EAConfig(**field)


def test_config_survives_save_and_load(tmp_path):
    made = config(mixer="ea-q17", short_conv=None, norm="post", causal=False, num_labels=5)
    made.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, EAConfig)
    assert again.to_diff_dict() == made.to_diff_dict()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "eattn"


def test_saved_aft_without_positions_loads(tmp_path):
    made = EAForCausalLM(config(mixer="aft", max_position_embeddings=9))
    assert made.model.layers[0].mixer.mixer.max_len == 9
    made.config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(saved | {"max_position_embeddings": None}))
    loaded = EAConfig.from_pretrained(tmp_path)
    assert (loaded.mixer, loaded.max_position_embeddings) == ("aft", None)
    assert AutoModelForCausalLM.from_config(loaded).model.layers[0].mixer.mixer.max_len == 512


@kinds
def test_auto_classes_make_every_model(kind):
    assert eattn.hf.EAModel is EAModel  # also through the lazy root
    assert type(AUTOS[kind].from_config(config())) is kind


@kinds
def test_model_class_sets_causal_if_config_omits_it(kind):
    given = config()
    made = kind(given)
    causal = kind in (EAModel, EAForCausalLM)
    assert made.config.causal is causal and given.causal is None
    assert all(layer.config.causal is causal for layer in made.base_model.layers)


@kinds
def test_model_class_sets_mixer_if_config_omits_it(kind, tmp_path):
    given = config()
    made = kind(given)
    mixer = "ea-6+decay" if kind in (EAModel, EAForCausalLM) else "ea-6"
    assert made.config.mixer == mixer and given.mixer is None
    assert all(layer.config.mixer == mixer for layer in made.base_model.layers)
    made.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).mixer == mixer


def test_causal_decides_on_the_default_mixer():
    assert EAModel(config(causal=False)).config.mixer == "ea-6"
    assert EAForSequenceClassification(config(causal=True)).config.mixer == "ea-6+decay"


def test_saved_config_without_mixer_keeps_ea_6(tmp_path):
    config(causal=True).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert EAConfig.from_pretrained(tmp_path).mixer is None
    del saved["mixer"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert EAConfig.from_pretrained(tmp_path).mixer == "ea-6"
    assert EAConfig.from_pretrained(tmp_path, mixer="ea-2").mixer == "ea-2"


@pytest.mark.parametrize("option", ["decay", "gate"])
def test_decay_in_non_causal_model_raises(option):
    mixer = f"ea-q17+{option}"
    for make in (
        lambda: config(mixer=mixer, causal=False),
        lambda: EAForMaskedLM(config(mixer=mixer)),
    ):
        with pytest.raises(ValueError, match=r"\+.* needs causal=True, got False; .* use 'ea-q17'"):
            make()


def test_contradictory_causal_raises():
    with pytest.raises(ValueError, match="EAForCausalLM needs causal=True"):
        EAForCausalLM(config(causal=False))
    with pytest.raises(ValueError, match="EAForMaskedLM needs causal=False"):
        EAForMaskedLM(config(causal=True))
    assert EAForSequenceClassification(config(causal=True)).config.causal


def test_config_of_another_model_raises(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a model of type 'bert', not 'eattn'"):
        EAConfig.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="config must be an EAConfig, got BertConfig"):
        EAModel(BertConfig())
