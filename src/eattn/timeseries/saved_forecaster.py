"""A forecaster as a folder: its weights, and where each of its series stands."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from eattn.models import Forecaster
from eattn.timeseries import store
from eattn.timeseries.freq import Step
from eattn.timeseries.inputs import need_pandas
from eattn.timeseries.memory import Named, alike
from eattn.timeseries.scaling import Scale
from eattn.timeseries.settings import saved_params, usable
from eattn.timeseries.tracks import Reader, Track
from eattn.train import isolated

if TYPE_CHECKING:
    from eattn.timeseries.forecaster import EAForecaster

Estimator = TypeVar("Estimator", bound="EAForecaster")
KIND = "forecaster"
FITTED = ("design_", "seed_", "levels_", "columns_")


def save(fitted: "EAForecaster", folder: store.Folder, *, force: bool) -> None:
    params = saved_params(fitted)
    if params["quantiles"] is not None:
        params["quantiles"] = [float(q) for q in params["quantiles"]]
    tracks = list(fitted.tracks_.values())
    config = {
        "params": params,
        "fitted": {name: getattr(fitted, name, None) for name in FITTED},
        "reader": {n: getattr(fitted.reader_, n) for n in ("fields", "window", "context")},
        "id_dtype": str(fitted.id_dtype_),
        "offsets": fitted.offsets_.tolist(),
        "tracks": [_track_to_json(track) for track in tracks],
    }
    tensors = {f"model.{name}": x.float() for name, x in fitted.model_.state_dict().items()}
    kept = [track.memory.tensors() for track in tracks]
    places = [(number, slot) for number, slots in enumerate(kept) for slot in range(len(slots))]
    for group, (rows, together) in enumerate(alike([named for slots in kept for named in slots])):
        tensors[f"memory.{group}.places"] = torch.tensor([places[row] for row in rows])
        tensors |= {f"memory.{group}.{name}": x for name, x in together.items()}
    store.save(folder, KIND, config, tensors, force=force)


def load(cls: type[Estimator], folder: store.Folder, *, dtype: str | None) -> Estimator:
    config, tensors = store.load(folder, KIND)
    try:
        fitted = cls(**config["params"])
        if dtype is not None:
            fitted.dtype = dtype
        _take(fitted, config, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise store.ModelError(f"{folder} holds no forecaster that fits: {reason}") from error
    return fitted


def _take(fitted: "EAForecaster", config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name, value in config["fitted"].items():
        setattr(fitted, name, value)
    fitted.id_dtype_ = need_pandas().api.types.pandas_dtype(config["id_dtype"])
    table = np.array(config["offsets"], dtype=np.float64)
    fitted.offsets_ = table.reshape(len(config["offsets"]), table.shape[-1] or 1)
    fitted.history_ = fitted.records_ = None
    with isolated():  # what it starts from is drawn, though replaced
        model = Forecaster(**fitted.design_).eval()
    weights = {n: x for n, x in tensors.items() if n.startswith("model.")}
    model.load_state_dict({name.removeprefix("model."): x for name, x in weights.items()})
    fitted.model_ = model.to(usable(fitted.device), getattr(torch, fitted.dtype))
    told = config["reader"]
    fitted.reader_ = Reader(fitted.model_, tuple(told["fields"]), told["window"], told["context"])
    kept = _memories(fitted.model_, tensors)
    found = [_track(fitted, track, kept[i]) for i, track in enumerate(config["tracks"])]
    fitted.tracks_ = {track.name: track for track in found}


def _memories(model: Forecaster, tensors: dict[str, Tensor]) -> dict[int, list[Named]]:
    """What was kept of each series, by its number."""
    like = next(model.parameters())
    found: dict[tuple[int, int], Named] = {}
    groups = [name.split(".")[1] for name in tensors if name.endswith(".places")]
    for group in groups:
        start = f"memory.{group}."
        named = {n.removeprefix(start): x for n, x in tensors.items() if n.startswith(start)}
        places = named.pop("places").tolist()
        for name, x in named.items():
            named[name] = x.to(like) if x.is_floating_point() else x.to(like.device)
        for row, (number, slot) in enumerate(places):
            found[number, slot] = {name: x[row : row + 1] for name, x in named.items()}
    kept: dict[int, list[Named]] = {}
    for number, slot in sorted(found):
        kept.setdefault(number, []).append(found[number, slot])
    return kept


def _track_to_json(track: Track) -> dict[str, Any]:
    dated = not isinstance(track.step.freq, int)
    return {
        "name": track.name,
        "freq": track.step.freq,
        "mean": track.scale.mean,
        "std": track.scale.std,
        "time": track.time.isoformat() if dated else int(track.time),
        "value": track.value,
        "count": track.memory.count,
    }


def _track(fitted: "EAForecaster", told: dict[str, Any], kept: list[Named]) -> Track:
    memory = fitted.reader_.memory()
    memory.restore(fitted.model_, told["count"], kept)
    dated = not isinstance(told["freq"], int)
    time = need_pandas().Timestamp(told["time"]) if dated else told["time"]
    scale = Scale(told["mean"], told["std"])
    return Track(told["name"], Step(told["freq"]), scale, memory, time, told["value"])
