"""A classifier as a folder: its weights, the labels it gives, and how it scales what it reads."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eattn.models import SequenceClassifier
from eattn.timeseries import store
from eattn.timeseries.arrays import Scaling
from eattn.timeseries.settings import plain, saved_params, usable
from eattn.train import isolated

if TYPE_CHECKING:
    from eattn.timeseries.classifier import EAClassifier

Estimator = TypeVar("Estimator", bound="EAClassifier")
KIND = "classifier"


def save(fitted: "EAClassifier", folder: store.Folder, *, force: bool) -> None:
    config = {
        "params": saved_params(fitted),
        "design": fitted.design_,
        "classes": _to_json(fitted.classes_),
        "metadata": {name: plain(value) for name, value in fitted.metadata_.items()},
        "flags": fitted.scaling_.flags,
        "max_len": fitted.max_len_,
        "seed": fitted.seed_,
    }
    tensors = {f"model.{name}": x for name, x in fitted.model_.state_dict().items()}
    tensors["mean"] = torch.from_numpy(fitted.scaling_.mean)
    tensors["std"] = torch.from_numpy(fitted.scaling_.std)
    store.save(folder, KIND, config, tensors, force=force)


def load(cls: type[Estimator], folder: store.Folder) -> Estimator:
    config, tensors = store.load(folder, KIND)
    try:
        fitted = cls(**config["params"])
        _take(fitted, config, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise store.ModelError(f"{folder} holds no classifier that fits: {reason}") from error
    return fitted


def _take(fitted: "EAClassifier", config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    labels = config["classes"]
    fitted.classes_ = np.array(labels["values"], dtype=np.dtype(labels["dtype"]))
    fitted.n_classes_ = len(fitted.classes_)
    fitted._class_dictionary = {label: i for i, label in enumerate(fitted.classes_)}
    fitted.metadata_ = config["metadata"]
    fitted.design_, fitted.max_len_ = config["design"], config["max_len"]
    fitted.seed_, fitted.history_ = config["seed"], None
    mean, std = (tensors.pop(name).numpy() for name in ("mean", "std"))
    fitted.scaling_ = Scaling(mean, std, config["flags"])
    with isolated():  # what it starts from is drawn, though replaced
        fitted.model_ = SequenceClassifier(**fitted.design_).eval()
    fitted.model_.load_state_dict({name.removeprefix("model."): x for name, x in tensors.items()})
    fitted.model_.to(usable(fitted.device))
    fitted.is_fitted = True


def _to_json(labels: NDArray[Any]) -> dict[str, Any]:
    """Read back by `np.array(values, dtype=dtype)`."""
    values = labels.astype(str) if labels.dtype.kind == "M" else labels  # dates
    return {"dtype": labels.dtype.str, "values": values.tolist()}
