"""Language models as graphs: whole texts and single tokens, beside the model itself."""

import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')
pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from export_helpers import CLOSE, SIZES, Exported, assert_same, state_of
from hf_helpers import ids, make, padded
from torch.testing import assert_close

from eattn import export
from eattn.hf import EACache, EAForMaskedLM

# The defaults with a series; and all that is not the default, with a quadrature.
LONGEST = 1200
MODELS = {
    "ea-2": {},
    "ea-q7": dict(
        mixer="ea-q7+norm+center+bandwidth", norm="post", max_position_embeddings=LONGEST
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    shape = {"mixer": "ea-2", "num_hidden_layers": 1, "vocab_size": 43} | MODELS[request.param]
    return make(**shape).float()


@pytest.fixture(scope="module")
def sequence(model, tmp_path_factory):
    """Not as ONNX, which takes long: tests/export/test_folder.py has one."""
    return Exported(export.sequence(model), tmp_path_factory.mktemp("sequence"), onnx=False)


@pytest.fixture(scope="module")
def step(model, tmp_path_factory):
    """As ONNX for one of them: tests/export/test_forecaster.py has a quadrature."""
    onnx = model.config.mixer == "ea-2"
    return Exported(export.step(model), tmp_path_factory.mktemp("step"), onnx=onnx)


def test_names_say_what_goes_in_and_out(step, sequence):
    state = ["layer0.conv", "layer0.s", "layer0.z", "layer0.shift", "seen"]
    inputs, outputs = ["input_ids", *state], ["logits", *(f"next.{name}" for name in state)]
    assert (step.graph.input_names, step.graph.output_names) == (inputs, outputs)
    assert sequence.graph.input_names == ["input_ids", "attention_mask"]
    assert sequence.graph.output_names == outputs
    if step.session is not None:
        assert [x.name for x in step.session.get_inputs()] == inputs
        assert [x.name for x in step.session.get_outputs()] == outputs


@pytest.mark.parametrize(("B", "L"), SIZES)
def test_a_text_of_any_length_gives_what_the_model_gives(model, sequence, B, L):
    tokens = ids(B, L)
    with torch.no_grad():
        want = model(tokens).logits
    for got in sequence.every(tokens, torch.ones_like(tokens)):
        assert_close(got["logits"], want, **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_gives_what_it_gives_alone_and_goes_on(model, sequence, step, side):
    rows = [ids(1, L, seed=L)[0] for L in (9, 4, 1)]
    tokens, mask = padded(rows, side)
    then = torch.tensor([3, 4, 5])
    for one in step.forms:
        out = sequence.torch(tokens, mask)
        after = one(then, state_of(out))
        assert state_of(out)["seen"].tolist() == [9, 4, 1]
        for i, row in enumerate(rows):
            with torch.no_grad():
                want = model(torch.cat([row, then[i : i + 1]])[None]).logits[0]
            assert_close(out["logits"][i, mask[i].bool()], want[:-1], **CLOSE)
            assert_close(after["logits"][i], want[-1], **CLOSE)


def test_a_thousand_steps_give_what_the_model_gives(model, step):
    tokens = ids(2, 1000)
    for form in step.forms:
        steps = 1000 if form == step.onnx else 20
        cache, state = EACache(1), step.graph.empty(2)
        with torch.no_grad():
            want = model(tokens[:, :steps], past_key_values=cache).logits
        for t in range(steps):
            out = form(tokens[:, t], state)
            assert_close(out["logits"], want[:, t], **CLOSE)
            state = state_of(out)
        assert_same(state, step.graph.module._named(cache))
        assert state["seen"].tolist() == [steps, steps]


def test_exact_attention_has_a_sequence_and_no_step():
    model = make(mixer="ea", num_hidden_layers=1).float()
    assert export.sequence(model).output_names == ["logits"]
    with pytest.raises(ValueError, match="'ea' cannot be exported: it keeps every token"):
        export.step(model)


@pytest.mark.parametrize("mixer", ["sa", "aft"])
def test_a_cache_of_every_token_is_no_state_of_a_graph(mixer):
    with pytest.raises(ValueError, match=f"{mixer!r} cannot be exported: it keeps every token"):
        export.step(make(mixer=mixer))


def test_what_loops_over_tokens_has_a_step_and_no_sequence():
    model = make(mixer="la", num_hidden_layers=1).float()
    with pytest.raises(ValueError, match="cannot be exported with mixer 'la'"):
        export.sequence(model)
    graph, tokens, cache = export.step(model), ids(3, 4), EACache(1)
    program, state = graph.torch().module(), graph.empty(3)
    for t in range(4):
        with torch.no_grad():
            logits, state = program(tokens[:, t], state)
            assert_close(logits, model(tokens[:, t : t + 1], past_key_values=cache).logits[:, 0])


def test_packed_sequences_cannot_be_exported():
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
def test_other_models_are_refused(wrong):
    with pytest.raises(TypeError, match=f"model must be a .*, got {type(wrong).__name__}"):
        export.sequence(wrong)


def test_the_model_stays_as_it_was():
    model = make(num_hidden_layers=1).double().train()
    export.sequence(model)
    assert model.training
    assert next(model.parameters()).dtype == torch.float64
