"""The exporters of transformers accept the models and their cache."""

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import KINDS, ids, make
from torch.testing import assert_close
from transformers.exporters import exporter_dynamo as exporters


@torch.no_grad()
def test_exported_decoding_step_continues_any_cache():
    model = make(num_hidden_layers=1).float()
    inputs = dict(input_ids=ids(2, 1), past_key_values=model(ids(2, 5)).past_key_values)
    config = exporters.DynamoConfig(dynamic=True)
    step = exporters.DynamoExporter().export(model, inputs, config).module()
    tokens = ids(3, 11)
    want, cache = model(tokens).logits, model(tokens[:, :8]).past_key_values
    for t in range(8, 11):
        out = step(input_ids=tokens[:, t : t + 1], past_key_values=cache)
        cache = out.past_key_values
        assert_close(out.logits[:, 0], want[:, t], rtol=1e-4, atol=1e-4)
    assert (cache.get_seq_length(), cache.lengths.tolist()) == (11, [11] * 3)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_exported_model_gives_same_output(kind):
    model = make(kind, num_hidden_layers=1, use_cache=False).float()
    inputs = dict(input_ids=ids(2, 5), attention_mask=torch.tensor([[1] * 5, [0, 0, 1, 1, 1]]))
    want = model(**inputs)[0]
    program = exporters.DynamoExporter().export(model, inputs, exporters.DynamoConfig())
    assert_close(program.module()(**inputs)[0], want)
