"""Softmax attention in a graph: room for its tokens from the start."""

import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')
pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from export_helpers import CLOSE, Exported, state_of
from hf_helpers import ids, make, padded
from torch.testing import assert_close

from eattn import export


def test_softmax_attention_with_room_for_its_tokens_has_a_step(tmp_path):
    model = make(mixer="sa", num_hidden_layers=1, max_position_embeddings=30).float()
    sequence = Exported(export.sequence(model), tmp_path, onnx=False)
    step = Exported(export.step(model), tmp_path)
    assert step.graph.empty(2)["layer0.keys"].shape == (2, 3, 30, 4)
    rows = [ids(1, L, seed=L)[0] for L in (20, 7)]
    then = ids(2, 10)
    for side in ("left", "right"):
        for one in step.forms:
            out = sequence.torch(*padded([row[:-1] for row in rows], side))
            out = one(torch.stack([row[-1] for row in rows]), state_of(out))
            for t in range(10):
                out = one(then[:, t], state_of(out))
            for i, row in enumerate(rows):
                with torch.no_grad():
                    want = model(torch.cat([row, then[i]])[None]).logits[0, -1]
                assert_close(out["logits"][i], want, **CLOSE)
