"""The life cycle of a model under `transformers.Trainer`, for every head."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import HEADS, config, ids, labels_for
from torch.testing import assert_close
from transformers import Trainer, TrainingArguments

from eattn.hf import EAForCausalLM, EAForQuestionAnswering

heads = pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)


def rows(kind, count=8):
    tokens = ids(count, 6)
    columns = dict(input_ids=tokens, **labels_for(kind, tokens))
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def trainer(kind, folder, **options):
    torch.manual_seed(0)
    data = rows(kind)
    quiet = dict(use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no")
    sizes = dict(per_device_train_batch_size=4, per_device_eval_batch_size=3)
    arguments = TrainingArguments(
        folder, **{**quiet, **sizes, "save_strategy": "no", "learning_rate": 0.01, **options}
    )

    def metrics(found):
        logits = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
        assert len(logits) == len(data)
        return {"finite": float(np.isfinite(logits).all())}

    return Trainer(
        kind(config()), arguments, train_dataset=data, eval_dataset=data, compute_metrics=metrics
    )


@heads
def test_trainer_trains_evaluates_predicts_and_resumes(kind, tmp_path):
    each = dict(eval_strategy="epoch", save_strategy="epoch", num_train_epochs=3)
    whole = trainer(kind, tmp_path, load_best_model_at_end=True, **each)
    whole.train()
    losses = [row["eval_loss"] for row in whole.state.log_history if "eval_loss" in row]
    assert len(losses) == 3 and losses[-1] < losses[0]
    found = whole.evaluate()
    assert found["eval_finite"] == 1 and found["eval_loss"] == pytest.approx(min(losses))
    predicted = whole.predict(rows(kind))
    assert predicted.metrics["test_finite"] == 1
    assert isinstance(predicted.predictions, tuple) == (kind is EAForQuestionAnswering)

    again = trainer(kind, tmp_path, **each)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.state.global_step == 6
    last = kind.from_pretrained(tmp_path / "checkpoint-6")
    for name, weight in again.model.state_dict().items():
        assert_close(weight, last.state_dict()[name])


@heads
def test_accumulated_gradients_match_one_large_batch(kind, tmp_path):
    weights = []
    for size, steps in ((8, 1), (2, 4)):
        once = trainer(
            kind,
            tmp_path,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            max_steps=1,
            optim="sgd",
            max_grad_norm=0,
            learning_rate=1.0,
        )
        once.train()
        weights.append(once.model.state_dict())
    for name, weight in weights[0].items():
        assert_close(weight, weights[1][name], rtol=1e-4, atol=1e-4)


def test_trainer_reduces_loss(tmp_path):
    once = trainer(EAForCausalLM, tmp_path, learning_rate=0.02, num_train_epochs=30)
    once.train_dataset = [dict(rows(EAForCausalLM)[0])] * 8
    before = once.evaluate(once.train_dataset)["eval_loss"]
    once.train()
    assert once.evaluate(once.train_dataset)["eval_loss"] < before / 2
