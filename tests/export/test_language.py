"""Graphs of language models: whole texts and single tokens; test_bundle.py tests ONNX."""

import re

import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')
pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from export_helpers import CLOSE, SIZES, Exported, assert_same, state_of
from hf_helpers import ids, make, padded
from torch.testing import assert_close

from eattn import export
from eattn.hf import EACache, EAForMaskedLM

# A Taylor series with all defaults, and a quadrature with every option changed.
LONGEST = 1200
MODELS = {
    "ea-2": {},
    "ea-2+decay": dict(mixer="ea-2+decay"),
    "ea-q7": dict(
        mixer="ea-q7+norm+center+bandwidth+gate", norm="post", max_position_embeddings=LONGEST
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    shape = {"mixer": "ea-2", "num_hidden_layers": 1, "vocab_size": 43} | MODELS[request.param]
    return make(**shape).float()


@pytest.fixture(scope="module")
def sequence(model, tmp_path_factory):
    return Exported(export.sequence(model), tmp_path_factory.mktemp("sequence"), onnx=False)


@pytest.fixture(scope="module")
def step(model, tmp_path_factory):
    return Exported(export.step(model), tmp_path_factory.mktemp("step"), onnx=False)


def test_inputs_and_outputs_have_names(model, step, sequence):
    decay = ["layer0.log_decay"] if "+" in model.config.mixer else []
    state = ["layer0.conv", "layer0.s", "layer0.z", "layer0.shift", *decay, "seen"]
    inputs, outputs = ["input_ids", *state], ["logits", *(f"next.{name}" for name in state)]
    assert (step.graph.input_names, step.graph.output_names) == (inputs, outputs)
    assert sequence.graph.input_names == ["input_ids", "attention_mask"]
    assert sequence.graph.output_names == outputs


@pytest.mark.parametrize(("B", "L"), SIZES)
def test_sequence_matches_the_model_for_any_length(model, sequence, B, L):
    tokens = ids(B, L)
    with torch.no_grad():
        want = model(tokens).logits
    assert_close(sequence.torch(tokens, torch.ones_like(tokens))["logits"], want, **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_row_matches_the_single_row(model, sequence, step, side):
    rows = [ids(1, L, seed=L)[0] for L in (9, 4, 1)]
    tokens, mask = padded(rows, side)
    then = torch.tensor([3, 4, 5])
    out = sequence.torch(tokens, mask)
    after = step.torch(then, state_of(out))
    assert state_of(out)["seen"].tolist() == [9, 4, 1]
    for i, row in enumerate(rows):
        with torch.no_grad():
            want = model(torch.cat([row, then[i : i + 1]])[None]).logits[0]
        assert_close(out["logits"][i, mask[i].bool()], want[:-1], **CLOSE)
        assert_close(after["logits"][i], want[-1], **CLOSE)


def test_many_steps_match_the_model(model, step):
    tokens, cache, state = ids(2, 200), EACache(1), step.graph.empty(2)
    with torch.no_grad():
        want = model(tokens, past_key_values=cache).logits
    for t in range(200):
        out = step.torch(tokens[:, t], state)
        assert_close(out["logits"], want[:, t], **CLOSE)
        state = state_of(out)
    assert_same(state, step.graph.module.named(cache))
    assert state["seen"].tolist() == [200, 200]


@pytest.mark.parametrize(
    ("mixer", "longest"), [("sa", None), ("sa+rope", 30), ("aft", 30), ("ea", None)]
)
def test_mixers_with_growing_state_have_no_step(mixer, longest):
    model = make(mixer=mixer, num_hidden_layers=1, max_position_embeddings=longest).float()
    assert export.sequence(model).output_names == ["logits"]
    with pytest.raises(
        ValueError, match=f"'{re.escape(mixer)}' cannot be exported.* use ea-N, ea-qN, la"
    ):
        export.step(model)


@pytest.mark.parametrize("mixer", ["la", "la+gate", "deltanet"])
def test_mixer_that_loops_over_tokens_has_no_sequence(mixer):
    model = make(mixer=mixer, num_hidden_layers=1).float()
    with pytest.raises(ValueError, match=f"cannot be exported with mixer '{re.escape(mixer)}'"):
        export.sequence(model)
    graph, tokens, cache = export.step(model), ids(3, 4), EACache(1)
    program, state = graph.torch().module(), graph.empty(3)
    for t in range(4):
        with torch.no_grad():
            logits, state = program(tokens[:, t], state)
            assert_close(logits, model(tokens[:, t : t + 1], past_key_values=cache).logits[:, 0])


def test_packed_sequences_raise():
    model = make(num_hidden_layers=1).float()

    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens, cu_seqlens):
            return self.model(tokens, cu_seqlens=cu_seqlens, use_cache=False).logits

    offsets = torch.tensor([0, 3, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens cannot be exported"):
        torch.export.export(Packed(), (ids(1, 9), offsets), strict=False)


@pytest.mark.parametrize("wrong", [torch.nn.Linear(2, 2), "a folder", make(EAForMaskedLM)])
def test_other_models_raise(wrong):
    with pytest.raises(TypeError, match=f"model must be a .*, got {type(wrong).__name__}"):
        export.sequence(wrong)


def test_model_is_not_changed():
    model = make(num_hidden_layers=1).double().train()
    export.sequence(model)
    assert model.training
    assert next(model.parameters()).dtype == torch.float64
