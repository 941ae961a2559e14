"""Metadata of a model for export.json: labels, scales, times, tokens and example inputs."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from eattn.models import Forecaster, SequenceClassifier
from eattn.nn.embedding import FIELDS
from eattn.timeseries import store

CONFIG, TOKENIZER, SPELLING = "config.json", "tokenizer.json", "tokens.json"
EXAMPLE_VALUES = 48  # length of the example series, unless the forecaster reads a window
PROMPT, TOKENS = "def ", 64  # example prompt, and the number of tokens to generate
LANGUAGE = "EAForCausalLM"
Metadata = dict[str, Any]


def load(folder: store.Folder) -> Any:
    """Load the estimator or language model saved in a folder."""
    path = Path(folder)
    config = _config(path)
    if config is not None:
        return _language_model(path, config)
    from eattn.timeseries import EAClassifier, EAForecaster

    if store.kind_of(path) == "classifier":
        return EAClassifier.load(path)
    return EAForecaster.load(path, dtype="float32")


def describe(source: Any) -> Metadata:
    """Return the metadata of an estimator or a language model, with its `kind`."""
    inner = getattr(source, "model_", None)
    if isinstance(inner, SequenceClassifier):
        return {"kind": "classifier", **_classifier(source)}
    if isinstance(inner, Forecaster):
        return {"kind": "forecaster", **_forecaster(source)}
    if isinstance(source, nn.Module) and hasattr(source, "lm_head"):
        return {"kind": "language model", **_language(source)}
    raise TypeError(
        "model must be a folder, a fitted estimator or an EAForCausalLM, got"
        f" {type(source).__name__}; use export.sequence and export.step to export only graphs"
    )


def write_tokenizer(model: Any, folder: Path) -> None:
    """Write the tokenizer of a language model and the bytes of its tokens."""
    from eattn.lm.tokenizer import spelling

    tokenizer = _tokenizer(model)
    tokenizer.backend_tokenizer.save(str(folder / TOKENIZER))
    spelled = spelling(tokenizer)
    if spelled is not None:
        text = json.dumps([token.decode("latin-1") for token in spelled])
        (folder / SPELLING).write_text(text + "\n", encoding="utf-8")


def _classifier(fitted: Any) -> Metadata:
    scaler = fitted.scaler_
    return {
        "mixer": fitted.model_.config.mixer,
        "classes": store.label_names(fitted.classes_),
        "channels": len(scaler.mean),  # channels of a series; x has twice as many if `flags`
        "mean": scaler.mean.tolist(),
        "std": scaler.std.tolist(),
        "limit": scaler.limit,
        "flags": fitted.flag_missing_,
        "longest": fitted.max_len_,
    }


def _forecaster(fitted: Any) -> Metadata:
    predictor, states = fitted.predictor_, list(fitted.states_.values())
    values = predictor.window or min(EXAMPLE_VALUES, predictor.context or EXAMPLE_VALUES)
    after = states[0].next_times(values + fitted.horizon)
    return {
        "mixer": fitted.model_.config.mixer,
        "horizon": fitted.horizon,
        "lags": fitted.model_.channels,
        "window": predictor.window,
        "context": predictor.context,
        "calendar": {name: FIELDS[name] for name in predictor.fields},
        "series": [
            {
                "unique_id": state.unique_id,
                "mean": float(state.scaler.mean),
                "std": float(state.scaler.std),
                "freq": state.freq,
                "last": state.ds,
            }
            for state in states
        ],
        "quantiles": list(fitted.levels_),
        "offsets": fitted.offsets_.tolist(),  # per quantile and step, in standard deviations
        "example": {"values": values, "times": list(after)},
    }


def _language(model: Any) -> Metadata:
    config, tokenizer = model.config, _tokenizer(model)
    prompt = [] if tokenizer is None else tokenizer(PROMPT)["input_ids"]
    prompt, longest = prompt or [config.bos_token_id or 0], config.max_position_embeddings
    room = TOKENS if longest is None else longest - len(prompt) + 1  # the last token is not read
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return {
        "mixer": config.mixer,
        "vocab_size": config.vocab_size,
        "bos_token_id": config.bos_token_id,
        "eos_token_ids": [end for end in ends if end is not None],
        "pad_token_id": config.pad_token_id,
        "longest": longest,
        "tokenizer": None if tokenizer is None else TOKENIZER,
        "example": {"input_ids": prompt[:longest], "tokens": max(1, min(TOKENS, room))},
    }


def _tokenizer(model: Any) -> Any:
    """Return the tokenizer in the folder of a language model, or None."""
    from eattn.lm.checkpoint_dir import load_tokenizer

    folder = model.name_or_path
    if not folder or not (Path(folder) / TOKENIZER).is_file():
        return None
    return load_tokenizer(Path(folder), model)


def _config(folder: Path) -> Metadata | None:
    """Return the configuration of a transformers model, or None if the folder has none."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) and "model_type" in config else None


def _language_model(folder: Path, config: Metadata) -> Any:
    from eattn.hf import EAConfig
    from eattn.lm.checkpoint_dir import load_model

    kind, names = config["model_type"], config.get("architectures")
    if kind != EAConfig.model_type or names not in (None, [LANGUAGE]):
        raise store.ModelError(
            f"{folder} holds a model of type {kind!r} and architectures {names}; only"
            f" {LANGUAGE} of eattn can be exported"
        )
    return load_model(folder)
