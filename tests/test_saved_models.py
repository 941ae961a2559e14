"""Language models saved by version 0.1 load and give the same logits and text."""

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import eattn.hf  # noqa: F401 - registers the model type
from eattn.lm import load

SAVED = Path(__file__).parent / "saved" / "0.1"


def assert_same(model, expected: dict) -> None:
    input_ids, want = torch.tensor(expected["input_ids"]), torch.tensor(expected["logits"])
    with torch.no_grad():
        logits = model(input_ids).logits
    assert_close(logits[:, -1] if want.dim() == 2 else logits, want, rtol=1e-5, atol=1e-5)
    new = len(expected["generated"][0]) - input_ids.shape[1]
    text = model.generate(input_ids[:1], max_new_tokens=new, do_sample=False, pad_token_id=0)
    assert text.tolist() == expected["generated"]


def test_hugging_face_folder_gives_the_same_logits(tmp_path):
    expected = json.loads((SAVED / "hf.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(SAVED / "hf").eval()
    assert_same(model, expected)
    model.save_pretrained(tmp_path)  # writes the present names
    old, new = (load_file(folder / "model.safetensors") for folder in (SAVED / "hf", tmp_path))
    assert any(".ffn.0." in name for name in old) and any(".ffn.up." in name for name in new)
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path).eval(), expected)
    fresh = AutoModelForCausalLM.from_config(model.config).eval()
    fresh.load_state_dict(old, strict=False)  # without the output weights, which are tied
    assert_same(fresh, expected)


def test_lm_folder_gives_the_same_logits():
    expected = json.loads((SAVED / "lm.json").read_text())
    model, tokenizer = load(SAVED / "lm")
    assert tokenizer(expected["prompt"])["input_ids"] == expected["input_ids"][0]
    assert_same(model.eval(), expected)
