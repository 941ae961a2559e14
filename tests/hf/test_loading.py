"""Initialising, saving and loading the weights of every head, following the ModelTesterMixin."""

from collections import defaultdict

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import HEADS, KINDS, MIXERS, config, ids, make
from safetensors.torch import save_file
from torch.testing import assert_close
from transformers import PreTrainedModel

from eattn.hf import (
    EACache,
    EAForCausalLM,
    EAForMaskedLM,
    EAForSequenceClassification,
    EAForTokenClassification,
)

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
heads = pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)


def assert_same_weights(model, other):
    state = model.state_dict()
    assert state.keys() == other.state_dict().keys()
    assert all(torch.equal(x, state[name]) for name, x in other.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "mixer"),
    [*((EAForCausalLM, mixer) for mixer in MIXERS), *((kind, MIXERS[2]) for kind in KINDS)],
)
def test_missing_weights_are_initialised_as_in_new_model(kind, mixer, monkeypatch):
    """Load a file without weights, and move a model from the meta device."""
    original = PreTrainedModel._initialize_weights

    def seeded(*args, **kwargs):
        torch.manual_seed(0)
        original(*args, **kwargs)

    monkeypatch.setattr(PreTrainedModel, "_initialize_weights", seeded)
    wanted = config(mixer=mixer, max_position_embeddings=30)
    model = kind(wanted)
    assert_same_weights(model, kind.from_pretrained(None, config=wanted, state_dict={}))
    with torch.device("meta"):
        moved = kind(wanted)
    moved.to_empty(device="cpu")
    for tensor in moved.state_dict().values():
        tensor.fill_(7)  # any memory
    moved.init_weights()
    assert_same_weights(model, moved)
    assert moved(ids(2, 5))[0].isfinite().all()


def tied_names(model):
    names = defaultdict(set)
    for name, tensor in model.state_dict().items():
        names[tensor.data_ptr()].add(name)
    return [group for group in names.values() if len(group) > 1]


@kinds
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_tied_as_declared_after_loading(kind, tied, tmp_path):
    """Save twice, as loading adds fields to the config."""
    model = make(kind, tie_word_embeddings=tied)
    declared = [set(pair) for pair in (kind._tied_weights_keys or {}).items()] if tied else []
    assert bool(declared) == (tied and kind in (EAForCausalLM, EAForMaskedLM))
    for _ in range(2):
        assert tied_names(model) == declared
        model.save_pretrained(tmp_path)
        again, report = kind.from_pretrained(tmp_path, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"]
        assert_same_weights(model, again)
        model = again
    assert tied_names(model) == declared
    assert (tmp_path / "generation_config.json").exists() == model.can_generate()


@kinds
def test_every_weight_missing_in_file_is_reported(kind, tmp_path):
    model = make(kind)
    model.save_pretrained(tmp_path)
    save_file({"extra": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    _, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    missing = set(report["missing_keys"]) - set(kind._tied_weights_keys or {})
    assert missing == {name for name, _ in model.named_parameters()}


@heads
def test_head_is_missing_in_saved_base_model(kind, tmp_path):
    model = make(kind)
    assert model.base_model is not model
    model.base_model.save_pretrained(tmp_path)
    again, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert_same_weights(model.base_model, again.base_model)
    assert set(report["missing_keys"]) == {
        name for name, _ in model.named_parameters() if not name.startswith("model.")
    }


@pytest.mark.parametrize("kind", [EAForSequenceClassification, EAForTokenClassification])
def test_other_number_of_labels_replaces_only_head(kind, tmp_path):
    model = make(kind, num_labels=3)
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        kind.from_pretrained(tmp_path, num_labels=42)
    again = kind.from_pretrained(tmp_path, num_labels=42, ignore_mismatched_sizes=True)
    assert_same_weights(model.base_model, again.base_model)
    assert again(ids(2, 5)).logits.shape[-1] == 42
    assert again.score.weight.std() > 0


@kinds
@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_model_loads_in_requested_precision(kind, name, tmp_path):
    make(kind).float().save_pretrained(tmp_path)
    want = kind.from_pretrained(tmp_path)(ids(2, 5))[0]
    dtypes = {"float16": torch.float16, torch.bfloat16: torch.bfloat16, "auto": torch.float32}
    for given, dtype in dtypes.items():
        model = kind.from_pretrained(tmp_path, **{name: given})
        assert {p.dtype for p in model.parameters()} == {dtype}
        got = model(ids(2, 5))[0]
        assert got.dtype == dtype
        assert_close(got.float(), want, rtol=0.1, atol=0.1)


@kinds
def test_loading_onto_meta_device_raises(kind, tmp_path):
    make(kind).save_pretrained(tmp_path)
    with torch.device("meta"), pytest.raises(RuntimeError, match="meta device context manager"):
        kind.from_pretrained(tmp_path)


@kinds
def test_blocks_can_be_offloaded_to_disk(kind, tmp_path):
    model, tokens = make(kind), ids(2, 7)
    model.save_pretrained(tmp_path)
    blocks = next(name for name, m in model.named_modules() if m is model.base_model.layers)
    places = {name: "cpu" for name, m in model.named_modules() if not m._modules}
    places = {name: place for name, place in places.items() if not name.startswith(blocks)}
    places |= {f"{blocks}.0": "cpu", f"{blocks}.1": "disk"}
    again = kind.from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "disk")
    assert {p.device.type for p in again.base_model.layers[1].parameters()} == {"meta"}
    assert_close(again(tokens)[0], model(tokens)[0])
    if model.config.causal:
        cache = EACache(2)
        got = [again(part, past_key_values=cache)[0] for part in tokens.split([4, 1, 2], 1)]
        assert_close(torch.cat(got, 1), model(tokens)[0])
