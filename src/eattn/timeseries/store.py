"""Save and load estimators as config.json and weights.safetensors, which cannot run code."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from eattn._io import replace_directory, replace_file
from eattn.models import SequenceClassifier
from eattn.timeseries.arrays import LIMIT
from eattn.timeseries.scaling import Scaler
from eattn.train import isolated

FORMAT = 4  # format 3 has other forecasters, format 4 other classifiers
CLASSIFIER, FORECASTER = KINDS = ("classifier", "forecaster")
CONFIG, WEIGHTS = "config.json", "weights.safetensors"
STATES = "eattn_states"  # metadata of a file of states
Folder = str | os.PathLike[str]
# Attributes of a forecaster that are saved as JSON.
FITTED = ("design_", "seed_", "levels_", "columns_", "names_")
# Parts of the state of a series.
TRACK = ("steps", "known", "first", "spikes", "held")
ARRAYS = ("outputs", "factors", "futr", "hist", "stat")


class ModelError(ValueError):
    """The folder holds no readable model, or must not be overwritten."""


# ---- folders ----


def save(
    folder: Folder,
    kind: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    force: bool = False,
) -> None:
    """Write a model atomically; `force` replaces an existing model, but no other files.

    `config` must be serialisable as JSON. Tensors may be on any device.
    """
    import eattn

    check_free(folder, force=force)
    weights = safetensors.torch.save({name: _own_memory(x) for name, x in tensors.items()})
    written = {
        "format": FORMAT,
        "kind": kind,
        "eattn": eattn.__version__,  # informative only; readers check `format`
        "sha256": {"config": _checksum(dict(config)), "weights": _checksum(weights)},
        "config": dict(config),
    }
    text = json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with replace_directory(folder) as fresh:
        (fresh / WEIGHTS).write_bytes(weights)
        (fresh / CONFIG).write_bytes(text.encode())


def load(folder: Folder, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors that were passed to `save`, on the CPU."""
    target = Path(folder)
    if not target.is_dir():
        raise ModelError(
            f"{target} {'is a file' if target.exists() else 'does not exist'};"
            " expected the folder of a saved model"
        )
    written = _read_config(target)
    if written["kind"] != kind:
        raise ModelError(f"{target} is a {written['kind']}, not a {kind}")
    content = _read(target / WEIGHTS)
    if _checksum(content) != written["sha256"]["weights"]:
        raise ModelError(
            f"{target / WEIGHTS} is corrupt: its checksum differs from the one in {CONFIG}"
        )
    try:
        return written["config"], safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"{target / WEIGHTS} is not a safetensors file: {reason}") from error


def kind_of(folder: Folder) -> str:
    """Return the kind of the model in a folder: "classifier" or "forecaster"."""
    kind: str = _read_config(Path(folder))["kind"]
    return kind


def check_free(
    folder: Folder,
    *,
    force: bool = False,
    files: Sequence[str] = (CONFIG, WEIGHTS),
    what: str = "a model",
) -> None:
    """Raise unless `folder` can be written and holds nothing but an earlier `what` of `files`."""
    target = Path(folder)
    if not target.exists():
        above = next(path for path in target.absolute().parents if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            reason = "is not writable" if above.is_dir() else "is a file"
            raise ModelError(f"cannot create {target}: {above} {reason}")
        return
    if not target.is_dir():
        raise ModelError(f"{target} is a file; expected a folder to save to")
    held = sorted(path.name for path in target.iterdir())
    if other := [name for name in held if name not in files]:
        raise ModelError(
            f"{target} holds {other[0]}, which is not part of {what}; choose another folder"
        )
    if held and not force:
        raise ModelError(f"{target} already holds {what}; use force=True (--force) to overwrite it")


def _read_config(target: Path) -> dict[str, Any]:
    path = target / CONFIG
    content = _read(path)
    try:
        written = json.loads(content)
    except ValueError as error:
        raise ModelError(f"{path} is corrupt: invalid JSON: {error}") from error
    if not isinstance(written, dict) or not isinstance(written.get("format"), int):
        raise ModelError(f"{path} does not describe an eattn model: it has no format")
    if written["format"] > FORMAT:
        raise ModelError(
            f"{path} has format {written['format']}, but this version reads up to {FORMAT}; "
            f"upgrade eattn (the model was saved by version {written.get('eattn', 'unknown')})"
        )
    try:
        whole = _checksum(written["config"]) == written["sha256"]["config"]
        whole = whole and isinstance(written["sha256"]["weights"], str)
        whole = whole and written["kind"] in KINDS
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise ModelError(f"{path} is corrupt: an entry is missing or was changed")
    return written


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path.parent} holds no saved model: {path.name} is missing") from None


def _own_memory(x: Tensor) -> Tensor:
    """Copy a tensor to its own memory: safetensors rejects tensors that share memory."""
    return x.detach().cpu().clone(memory_format=torch.contiguous_format)


def _checksum(content: Any) -> str:
    """Return the SHA-256 of bytes, or of the canonical JSON of anything else."""
    if not isinstance(content, bytes):
        content = json.dumps(content, sort_keys=True, allow_nan=False).encode()
    return hashlib.sha256(content).hexdigest()


# ---- estimators ----


def label_names(labels: NDArray[Any]) -> list[Any]:
    """Return labels as JSON can hold them: dates as text."""
    names: list[Any] = (labels.astype(str) if labels.dtype.kind == "M" else labels).tolist()
    return names


def save_classifier(
    fitted: Any, folder: Folder, *, force: bool, early: Mapping[str, Any] | None = None
) -> None:
    """Save the weights, the labels, the scaler and the stopping rule of an `EarlyClassifier`."""
    params, labels = _saved_params(fitted), fitted.classes_
    if isinstance(params["class_weight"], Mapping):  # JSON keys are text, but labels may not be
        params["class_weight"] = [float(params["class_weight"].get(c, 1)) for c in labels]
    config = {
        "params": params,
        "design": fitted.design_,
        "classes": {"dtype": labels.dtype.str, "values": label_names(labels)},
        "metadata": {name: plain(value) for name, value in fitted.metadata_.items()},
        "flags": fitted.flag_missing_,
        "max_len": fitted.max_len_,
        "seed": fitted.seed_,
    }
    if early is not None:
        config["early"] = dict(early)
    tensors = {f"model.{name}": x for name, x in fitted.model_.state_dict().items()}
    tensors["mean"] = torch.from_numpy(fitted.scaler_.mean)
    tensors["std"] = torch.from_numpy(fitted.scaler_.std)
    save(folder, CLASSIFIER, config, tensors, force=force)


def load_classifier(cls: Any, folder: Folder) -> Any:
    """Load a classifier to its device, or to the CPU if that is not available."""
    from eattn.timeseries.training import make_classifier

    config, tensors = load(folder, CLASSIFIER)
    with _model_errors(folder, CLASSIFIER):
        known = cls().get_params(deep=False)  # 0.1 had options that are ignored now
        fitted = cls(**{name: x for name, x in config["params"].items() if name in known})
        labels = config["classes"]
        fitted.classes_ = np.array(labels["values"], dtype=np.dtype(labels["dtype"]))
        if isinstance(fitted.class_weight, list):
            fitted.class_weight = dict(zip(fitted.classes_, fitted.class_weight, strict=True))
        fitted.n_classes_ = len(fitted.classes_)
        fitted._class_dictionary = {label: i for i, label in enumerate(fitted.classes_)}
        fitted.metadata_ = config["metadata"]
        fitted.design_, fitted.max_len_ = config["design"], config["max_len"]
        fitted.seed_, fitted.history_, fitted.histories_ = config["seed"], None, []
        fitted.scaler_ = Scaler(tensors["mean"].numpy(), tensors["std"].numpy(), LIMIT)
        fitted.flag_missing_ = config["flags"]
        kind = make_classifier if "network" in fitted.design_ else SequenceClassifier  # of 0.1
        fitted.model_ = _load_model(kind, fitted.design_, tensors)
        fitted.model_.to(_usable_device(fitted.device))
        fitted.is_fitted = True
        return fitted


def load_early(folder: Folder) -> dict[str, Any]:
    """Return the stopping rule that was saved with a classifier."""
    config, _ = load(folder, CLASSIFIER)
    if "early" not in config:
        raise ModelError(f"{folder} holds a classifier without a stopping rule: use EAClassifier")
    early: dict[str, Any] = config["early"]
    return early


def save_forecaster(fitted: Any, folder: Folder, *, force: bool) -> None:
    """Save the weights and the state of each series, without the history."""
    params = _saved_params(fitted)
    for name, value in params.items():
        if isinstance(value, Iterable) and not isinstance(value, str):
            params[name] = [plain(each) for each in value]
    predictor = fitted.predictor_
    saved, tensors = _pack_states(list(fitted.states_.values()))
    config = {
        "params": params,
        "fitted": {name: getattr(fitted, name, None) for name in FITTED},
        "fields": predictor.fields,
        "seasons": predictor.seasons,
        "covariates": predictor.covariates.to_dict(),
        "candidates": [asdict(c) | {"factors": c.factors.tolist()} for c in fitted.candidates_],
        "chosen": list(fitted.chosen_.items()),
        "id_dtype": str(fitted.id_dtype_),
        "tracks": saved,
    }
    names = [candidate.name for candidate in fitted.candidates_]
    tensors["losses"] = torch.from_numpy(fitted.fit_report_[names].to_numpy())
    save(folder, FORECASTER, config, _model_tensors(fitted) | tensors, force=force)


def load_forecaster(cls: Any, folder: Folder, *, dtype: str | None = None) -> Any:
    """Load a forecaster to its device, or to the CPU if that is not available."""
    import pandas as pd

    from eattn.models import QuantileForecaster
    from eattn.timeseries.calibration import Calibration
    from eattn.timeseries.choice import Candidate, fit_report
    from eattn.timeseries.covariates import Covariates
    from eattn.timeseries.predictor import Predictor

    config, tensors = load(folder, FORECASTER)
    if "candidates" not in config:
        raise ModelError(f"{folder} was saved by eattn 0.1, whose forecasters differ: fit again")
    with _model_errors(folder, FORECASTER):
        fitted = cls(**config["params"])
        if dtype is not None:
            fitted.dtype = dtype
        for name, value in config["fitted"].items():
            setattr(fitted, name, value)
        fitted.levels_ = tuple(fitted.levels_)
        fitted.id_dtype_ = pd.api.types.pandas_dtype(config["id_dtype"])
        fitted.history_ = fitted.series_ = None
        model = _load_model(QuantileForecaster, fitted.design_, tensors)
        fitted.model_ = model.to(_usable_device(fitted.device), getattr(torch, fitted.dtype))
        fitted.candidates_ = tuple(
            Candidate(each["name"], each["rule"], np.array(each["factors"]))
            for each in config["candidates"]
        )
        fitted.chosen_ = dict(config["chosen"])
        fitted.fit_report_ = fit_report(
            fitted.chosen_, fitted.candidates_, tensors["losses"].numpy()
        )
        fitted.predictor_ = Predictor(
            model,
            tuple(config["fields"]),
            tuple(config["seasons"]),
            Calibration(model.levels, fitted.horizon),
            Covariates.from_dict(config["covariates"]),
        )
        fitted.states_ = _unpack_states(config["tracks"], tensors)
        return fitted


def save_states(fitted: Any, file: Folder) -> None:
    """Write the state of each series to one file, atomically."""
    saved, tensors = _pack_states(list(fitted.states_.values()))
    content = {"model": _checksum_of(fitted), "tracks": saved}
    tensors = {name: _own_memory(x) for name, x in tensors.items()}
    with replace_file(file) as partial:
        safetensors.torch.save_file(tensors, partial, metadata={STATES: json.dumps(content)})


def load_states(fitted: Any, file: Folder) -> None:
    """Continue from the states in a file; raise unless they belong to this model."""
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            content = json.loads((opened.metadata() or {})[STATES])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"{file} does not hold the states of series: {reason}") from error
    if content["model"] != _checksum_of(fitted):
        raise ModelError(f"{file} holds states of another model; choose another file")
    fitted.states_ = _unpack_states(content["tracks"], tensors)


def _checksum_of(fitted: Any) -> str:
    return _checksum(safetensors.torch.save(_model_tensors(fitted)))


def _model_tensors(fitted: Any) -> dict[str, Tensor]:
    weights = fitted.model_.state_dict()
    return {f"model.{name}": _own_memory(x.float()) for name, x in weights.items()}


def _pack_states(states: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the states of series as JSON and tensors; those of equal shapes as a batch."""
    saved, alike = [], dict[Any, list[tuple[int, dict[str, Any]]]]()
    for number, state in enumerate(states):
        dated = not isinstance(state.freq, int)
        saved.append(
            {
                "name": state.unique_id,
                "freq": state.freq,
                "time": state.ds.isoformat() if dated else int(state.ds),
                "zone": str(state.ds.tz) if dated and state.ds.tz else None,
                "track": {name: getattr(state.track, name) for name in TRACK},
                "rule": state.rule,
                "lower": state.lower if np.isfinite(state.lower) else None,
                "surprise": list(state.surprise),
            }
        )
        arrays = {name: getattr(state, name) for name in ARRAYS} | {"rows": state.track.rows}
        arrays |= {f"encoder.{name}": x[0] for name, x in state.encoder.items()}
        shapes = tuple((name, x.shape) for name, x in arrays.items())
        alike.setdefault(shapes, []).append((number, arrays))
    tensors = {}
    for group, members in enumerate(alike.values()):
        start = f"memory.{group}."
        tensors[f"{start}places"] = torch.tensor([number for number, _ in members])
        for name in members[0][1]:
            together = np.stack([arrays[name] for _, arrays in members])
            tensors[start + name] = torch.from_numpy(together)
    return saved, tensors


def _unpack_states(saved: Sequence[dict[str, Any]], tensors: dict[str, Tensor]) -> dict[Any, Any]:
    """Return the states of series by unique_id: the inverse of `_pack_states`."""
    import pandas as pd

    from eattn.timeseries.anomalies import Surprise
    from eattn.timeseries.predictor import SeriesState
    from eattn.timeseries.tracking import Track

    arrays: dict[int, dict[str, Any]] = {}
    for group in (name.split(".")[1] for name in tensors if name.endswith(".places")):
        start = f"memory.{group}."
        named = {
            n.removeprefix(start): x.numpy() for n, x in tensors.items() if n.startswith(start)
        }
        for row, number in enumerate(named.pop("places")):
            arrays[int(number)] = {name: x[row].copy() for name, x in named.items()}
    states = {}
    for number, each in enumerate(saved):
        time = each["time"]
        if not isinstance(each["freq"], int):
            time = pd.Timestamp(time)
            time = time.tz_convert(each["zone"]) if each.get("zone") else time
        own = arrays[number]
        prefix = "encoder."
        states[each["name"]] = SeriesState(
            each["name"],
            each["freq"],
            ds=time,
            track=Track(own["rows"], **each["track"]),
            encoder={
                n.removeprefix(prefix): x[None] for n, x in own.items() if n.startswith(prefix)
            },
            **{name: own[name] for name in ARRAYS},
            rule=each["rule"],
            lower=-np.inf if each["lower"] is None else each["lower"],
            surprise=Surprise(*each["surprise"]),
        )
    return states


@contextmanager
def _model_errors(folder: Folder, kind: str) -> Iterator[None]:
    """Convert errors about unsuitable content to a ModelError that names the folder."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"{folder} does not hold a valid {kind}: {reason}") from error


def _load_model(kind: Any, design: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    with isolated():  # initial weights consume random numbers before they are replaced
        model = kind(**design).eval()
    weights = {name: x for name, x in tensors.items() if name.startswith("model.")}
    model.load_state_dict({name.removeprefix("model."): x for name, x in weights.items()})
    return model


def plain(value: Any) -> Any:
    """Convert NumPy scalars, such as those in parameter grids, to Python numbers."""
    return value.item() if isinstance(value, np.generic) else value


def plain_params(estimator: Any) -> dict[str, Any]:
    """Return the parameters of an estimator with NumPy scalars converted."""
    return {name: plain(value) for name, value in estimator.get_params(deep=False).items()}


def _saved_params(fitted: Any) -> dict[str, Any]:
    """Return the parameters that recreate the estimator on any machine."""
    params = plain_params(fitted)
    if not isinstance(params["random_state"], int | None):
        params["random_state"] = fitted.seed_
    return params | {"device": str(fitted.device), "checkpoint": None}


def _usable_device(device: str) -> torch.device:
    """Return the device of this name, or the CPU if it is not available."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError):  # torch without CUDA raises AssertionError
        return torch.device("cpu")
