"""`transformers.pipeline` loads saved models; a padded batch gives the results of single texts.

Question answering is left out, as transformers 5 has no pipeline for it.
"""

import pytest

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import letters, make
from transformers import pipeline

from eattn.hf import (
    EAForCausalLM,
    EAForMaskedLM,
    EAForSequenceClassification,
    EAForTokenClassification,
)

TASKS = {
    "text-generation": EAForCausalLM,
    "fill-mask": EAForMaskedLM,
    "text-classification": EAForSequenceClassification,
    "token-classification": EAForTokenClassification,
}


def rounded(found):
    """Round the numbers of nested results; padding shifts the index of a token."""
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items() if name != "index"}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return found if isinstance(found, str) else round(float(found), 6)


@pytest.mark.parametrize("task", TASKS)
def test_pipeline_gives_same_results_for_padded_batch(task, tmp_path):
    tokenizer = letters()
    make(TASKS[task], vocab_size=len(tokenizer), num_labels=3).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    run = pipeline(task, str(tmp_path), batch_size=2, device="cpu")
    texts = ["hel<mask>lo", "n<mask>o"] if task == "fill-mask" else ["hello", "no"]
    options = dict(max_new_tokens=5, do_sample=False) if task == "text-generation" else {}
    alone = [run(text, **options) for text in texts]
    assert all(alone)
    for found, want in zip(run(texts, **options), alone, strict=True):
        assert rounded([found] if isinstance(found, dict) else found) == rounded(want)
