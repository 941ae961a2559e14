"""What a graph does not say of itself: labels, scales, times, tokens, and inputs to try it on."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from eattn.models import Forecaster, SequenceClassifier
from eattn.nn.embedding import FIELDS
from eattn.timeseries import arrays, store

CONFIG, TOKENIZER, SPELLING = "config.json", "tokenizer.json", "tokens.json"
TRIED = 48  # values of a series to try a forecaster on, where it does not read a fixed number
PROMPT, TOKENS = "def ", 64  # to try a language model on, and how many it adds
LANGUAGE = "EAForCausalLM"
Facts = dict[str, Any]


def load(folder: store.Folder) -> Any:
    """The estimator or the language model that was saved there."""
    path = Path(folder)
    told = _config(path)
    if told is not None:
        return _language_model(path, told)
    from eattn.timeseries import EAClassifier, EAForecaster

    if store.kind_of(path) == "classifier":
        return EAClassifier.load(path)
    return EAForecaster.load(path, dtype="float32")


def facts_of(source: Any) -> Facts:
    """By `kind`, for estimators and language models as `load` gives them."""
    inner = getattr(source, "model_", None)
    if isinstance(inner, SequenceClassifier):
        return {"kind": "classifier", **_classifier(source)}
    if isinstance(inner, Forecaster):
        return {"kind": "forecaster", **_forecaster(source)}
    if isinstance(source, nn.Module) and hasattr(source, "lm_head"):
        return {"kind": "language model", **_language(source)}
    raise TypeError(
        "model must be a folder, a fitted estimator or an EAForCausalLM to be exported with all"
        f" that belongs to it, got {type(source).__name__}: `sequence` and `step` take its graphs"
    )


def write_tokenizer(model: Any, folder: Path) -> None:
    """That of a language model, and the bytes its tokens spell, a character for each."""
    from eattn.lm.tokenizer import spelling

    tokenizer = _tokenizer(model)
    tokenizer.backend_tokenizer.save(str(folder / TOKENIZER))
    spelled = spelling(tokenizer)
    if spelled is not None:
        text = json.dumps([token.decode("latin-1") for token in spelled])
        (folder / SPELLING).write_text(text + "\n", encoding="utf-8")


def _classifier(fitted: Any) -> Facts:
    scaling = fitted.scaling_
    return {
        "mixer": fitted.model_.config.mixer,
        "classes": fitted.classes_.tolist(),
        "channels": len(scaling.mean),  # of a series; x has as many again with `flags`
        "mean": scaling.mean.tolist(),
        "std": scaling.std.tolist(),
        "limit": arrays.LIMIT,
        "flags": scaling.flags,
        "longest": fitted.max_len_,
    }


def _forecaster(fitted: Any) -> Facts:
    reader, tracks = fitted.reader_, list(fitted.tracks_.values())
    values = reader.window or min(TRIED, reader.context or TRIED)
    after = tracks[0].step.after(tracks[0].time, values + fitted.horizon)
    return {
        "mixer": fitted.model_.config.mixer,
        "horizon": fitted.horizon,
        "lags": fitted.model_.channels,
        "window": reader.window,
        "context": reader.context,
        "calendar": {name: FIELDS[name] for name in reader.fields},
        "series": [
            {
                "unique_id": track.name,
                "mean": track.scale.mean,
                "std": track.scale.std,
                "freq": track.step.freq,
                "last": track.time,
            }
            for track in tracks
        ],
        "quantiles": list(fitted.levels_),
        "offsets": fitted.offsets_.tolist(),  # of each quantile at each step, in deviations
        "example": {"values": values, "times": list(after)},
    }


def _language(model: Any) -> Facts:
    config, tokenizer = model.config, _tokenizer(model)
    prompt = [] if tokenizer is None else tokenizer(PROMPT)["input_ids"]
    prompt, longest = prompt or [_some_token(config)], config.max_position_embeddings
    room = TOKENS if longest is None else longest - len(prompt) + 1  # the last is not read
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
    """The one beside the weights of a language model that was loaded, if there is one."""
    from eattn.lm.checkpoint_dir import load_tokenizer

    folder = model.name_or_path
    if not folder or not (Path(folder) / TOKENIZER).is_file():
        return None
    return load_tokenizer(Path(folder), model)


def _some_token(config: Any) -> int:
    """One to begin with: that of beginnings, or the first that means nothing special."""
    if config.bos_token_id is not None:
        return int(config.bos_token_id)
    special = (config.pad_token_id, config.eos_token_id)
    return next((token for token in range(config.vocab_size) if token not in special), 0)


def _config(folder: Path) -> Facts | None:
    """The configuration of a model of transformers; None if it is none, or cannot be read."""
    try:
        told = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) and "model_type" in told else None


def _language_model(folder: Path, told: Facts) -> Any:
    from eattn.hf import EAConfig
    from eattn.lm.checkpoint_dir import load_model

    kind = (told.get("architectures") or [LANGUAGE])[0]
    if told["model_type"] != EAConfig.model_type or kind != LANGUAGE:
        raise store.ModelError(
            f"{folder} holds a model of type {told['model_type']!r}, {kind}: of language models"
            f" {LANGUAGE} of eattn can be exported"
        )
    try:
        return load_model(folder)
    except (OSError, RuntimeError, TypeError) as error:  # it names no folder of its own accord
        reason = str(error).strip().partition("\n")[0]
        raise store.ModelError(f"{folder} holds no model that can be read: {reason}") from error
