"""Metadata of a model for export.json: labels, scales, times, tokens and example inputs."""

import json
import math
from pathlib import Path
from typing import Any

from torch import nn

from eattn.models import ClassifierEnsemble, QuantileForecaster, SequenceClassifier
from eattn.timeseries import store
from eattn.timeseries.tracking import SCALE, SLOW

CONFIG, TOKENIZER, SPELLING = "config.json", "tokenizer.json", "tokens.json"
EXAMPLE_VALUES = 48  # length of the example series
HOLIDAY_YEARS = 10  # before and after the last value
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
    return EAForecaster.load(path)


def describe(source: Any) -> Metadata:
    """Return the metadata of an estimator or a language model, with its `kind`."""
    inner = getattr(source, "model_", None)
    if isinstance(inner, SequenceClassifier | ClassifierEnsemble):
        return {"kind": "classifier", **_classifier(source)}
    if isinstance(inner, QuantileForecaster):
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
    from eattn.timeseries.calendar import HARMONICS  # imports pandas
    from eattn.timeseries.covariates import LIMIT

    predictor, states = fitted.predictor_, list(fitted.states_.values())
    covariates = predictor.covariates.to_dict()
    return {
        "mixer": fitted.model_.config.mixer,
        "horizon": predictor.horizon,
        "levels": list(predictor.calibration.levels),
        "freq": fitted.freq_,
        "seasons": list(predictor.seasons),
        "calendar": {name: HARMONICS[name] for name in predictor.fields},
        "future": covariates["futr"],
        "past": covariates["hist"],
        "limit": LIMIT,  # of scaled covariates
        "holidays": _holidays(predictor.covariates.holidays, states),
        "choices": [candidate.name for candidate in fitted.candidates_],
        "series": [
            {
                "unique_id": store.plain(state.unique_id),
                "choice": fitted.chosen_.get(state.unique_id, 0),
                "lower": state.lower if math.isfinite(state.lower) else None,
                "static": state.stat.tolist(),
                "last": _time(state.ds),
            }
            for state in states
        ],
        "example": _example_rows(predictor, states[0]),
    }


def _holidays(calendar: Any, states: list[Any]) -> list[str] | None:
    """Return the dates of holidays around the last values, or None without holidays."""
    if calendar is None:
        return None
    import pandas as pd

    years = [state.ds.year for state in states]
    first, last = min(years) - HOLIDAY_YEARS, max(years) + HOLIDAY_YEARS
    days = pd.date_range(f"{first}-01-01", f"{last}-12-31")
    return [str(day.date()) for day in days[calendar.rows(days)[:, 0] > 0]]


def _example_rows(predictor: Any, state: Any) -> Metadata:
    """Return rows that follow the last one: a sine wave on the scale of the series."""
    covariates, now = predictor.covariates, state.track.rows[-1]
    rows: list[Metadata] = []
    for i, time in enumerate(state.next_times(EXAMPLE_VALUES + predictor.horizon).tolist()):
        rows.append({"ds": _time(time)})
        past = i < EXAMPLE_VALUES
        if past:
            rows[i]["y"] = float(now[SLOW] + now[SCALE] * math.sin(i / 3))
        for column in (*covariates.futr, *(covariates.hist if past else ())):
            rows[i][column.name] = _example_value(column, i)
    return {"history": rows[:EXAMPLE_VALUES], "future": rows[EXAMPLE_VALUES:]}


def _time(time: Any) -> int | str:
    """Return an integer as it is, and a time as text in ISO format."""
    return str(time) if hasattr(time, "isoformat") else int(time)


def _example_value(column: Any, i: int) -> float | str:
    """Return a number or a category that a covariate had in training."""
    if hasattr(column, "values"):
        return str(column.values[i % len(column.values)])
    return float(column.center + column.scale * math.sin(i / 2))


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
