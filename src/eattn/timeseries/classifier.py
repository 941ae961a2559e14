"""EAClassifier: a classifier of time series for scikit-learn and aeon."""

import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from eattn._checks import check_number
from eattn.nn import check_mixer
from eattn.timeseries import arrays, store, training
from eattn.timeseries.arrays import Case
from eattn.train import History, TrainConfig

try:
    from aeon.classification.base import BaseClassifier
    from aeon.utils.validation.collection import get_n_channels, get_type
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'EAClassifier needs the package aeon: pip install "eattn[timeseries]"'
    ) from error

MAX_TOKENS = 128  # unless `patch` is set
DESIGN = ("mixer", "dim", "depth", "heads", "dropout", "norm", "pooling", "positions")


@dataclass(eq=False, repr=False)
class EAClassifier(BaseClassifier):
    """Classify series of any length with a Transformer encoder of any mixer.

    X is an array [cases, channels, length], or [cases, length] for one channel, or a list of arrays
    [channels, length] of unequal length. NaN is a missing value; NaN in all channels before and
    after a series is padding. y are labels of any type. Channels are standardised by their training
    mean and deviation. Series longer than any in training are split, and their probabilities
    averaged.

    Parameters
    ----------
    mixer, dim, depth, heads, ffn, dropout, norm, pooling, positions
        Design of the `SequenceClassifier`; ffn is 2 dim if None.
    patch : int, optional
        Samples per token; as few as give at most 128 tokens if None.
    embed : {"conv", "linear"}, optional
        Embedding of tokens; "conv" over neighbours for patch 1 if None, otherwise "linear".
    epochs : int, optional
        If None, 60, and more where these have fewer than 600 steps.
    batch_size, optimizer, lr, weight_decay, schedule, clip
        Training options, as in `TrainConfig`.
    validation_fraction : float, default 0.2
        Fraction of each class that selects the best epoch, and stops training after `patience`
        epochs without a better one. With 0, or fewer than 10 cases in it, all cases are trained on.
    device : str, default "auto"
    checkpoint : path, optional
        Folder that keeps the run, so that `fit` resumes it after an interruption.
    verbose : bool, default False
        Show progress.
    random_state : int, RandomState or None, default 0

    Attributes
    ----------
    classes_, model_, history_, scaler_, flag_missing_, max_len_, seed_
        Labels, `SequenceClassifier`, training history, scaler of the channels, whether missing
        values have their own channels, length of the longest training series, and seed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(2, rng.integers(10, 20))) + i % 2 for i in range(40)]
    >>> y = ["low", "high"] * 20
    >>> EAClassifier(dim=16, depth=1, epochs=20).fit(X, y).predict(X[:2])
    array(['low', 'high'], dtype='<U4')
    """

    _tags = {  # noqa: RUF012, as aeon has it
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "X_inner_type": ["np-list", "numpy3D"],
        "algorithm_type": "deeplearning",
    }

    mixer: str = "ea-6"
    _: KW_ONLY
    dim: int = 128
    depth: int = 3
    heads: int = 8
    ffn: int | None = None
    dropout: float = 0.1
    norm: str = "post"
    patch: int | None = None
    embed: str | None = None
    pooling: str = "flatten"
    positions: bool = True
    epochs: int | None = None
    batch_size: int = 16
    optimizer: str = "radam"
    lr: float = 1e-3
    weight_decay: float = 0.01
    schedule: str = "cosine"
    clip: float | None = 1.0
    validation_fraction: float = 0.2
    patience: int | None = 20
    device: str = "auto"
    checkpoint: str | os.PathLike[str] | None = None
    verbose: bool = False
    random_state: int | np.random.RandomState | None = 0

    def __post_init__(self) -> None:
        super().__init__()

    def save(self, folder: store.Folder, *, force: bool = False) -> None:
        """Write the fitted model as JSON and safetensors; `force` replaces a model there."""
        self._check_is_fitted()
        store.save_classifier(self, folder, force=force)

    @classmethod
    def load(cls, folder: store.Folder) -> Self:
        """Load a saved model; on a GPU if it was there and this machine has one."""
        loaded: Self = store.load_classifier(cls, folder)
        return loaded

    def _fit(self, X: list[Case] | Case, y: NDArray[Any]) -> Self:
        params, config = self._check_params(len(X))
        self.seed_ = config.seed
        self.scaler_, self.flag_missing_ = arrays.fit_scaler(X)
        if all(np.array_equal(case, X[0], equal_nan=True) for case in X):
            raise ValueError(f"X must differ from case to case, got {len(X)} times the same series")
        series = arrays.to_tensors(X, self.scaler_, flag_missing=self.flag_missing_)
        self.max_len_ = max(map(len, series))
        self.design_ = self._design(params)
        self.history_: History | None  # None for a model that was loaded
        self.model_, self.history_ = training.train_classifier(
            series,
            np.searchsorted(self.classes_, y),
            self.design_,
            config,
            validation_fraction=params["validation_fraction"],
            progress=bool(self.verbose),
        )
        return self

    def _predict(self, X: list[Case] | Case) -> NDArray[Any]:
        found: NDArray[Any] = self.classes_[self._predict_proba(X).argmax(1)]
        return found

    def _predict_proba(self, X: list[Case] | Case) -> NDArray[np.float64]:
        """Return the probabilities [cases, classes], averaged over the pieces of long series."""
        series = arrays.to_tensors(X, self.scaler_, flag_missing=self.flag_missing_)
        parts = [arrays.split_long(x, self.max_len_) for x in series]
        pieces = [piece for part in parts for piece in part]
        case = torch.repeat_interleave(torch.tensor([len(part) for part in parts]).long())
        sums = torch.zeros(len(parts), self.n_classes_, dtype=torch.float64)
        with torch.inference_mode():
            found = [x.double().cpu().softmax(-1) for x in training.logits_of(self.model_, pieces)]
        if found:
            sums.index_add_(0, case, torch.cat(found))
        return (sums / sums.sum(1, keepdim=True)).numpy()

    def _design(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `SequenceClassifier`; data decides those left open."""
        patch, embed, ffn = params["patch"], params["embed"], params["ffn"]
        if patch is None:
            patch = -(-self.max_len_ // MAX_TOKENS)
        return {name: params[name] for name in DESIGN} | {
            "channels": len(self.scaler_.mean) * (2 if self.flag_missing_ else 1),
            "classes": self.n_classes_,
            "max_len": self.max_len_,
            "patch": patch,
            "embed": ("conv" if patch == 1 else "linear") if embed is None else embed,
            "ffn": 2 * params["dim"] if ffn is None else ffn,
        }

    def _check_params(self, cases: int) -> tuple[dict[str, Any], TrainConfig]:
        """Return the parameters as Python types, and the training configuration."""
        params = store.plain_params(self)
        check_mixer(params["mixer"])
        check_number("validation_fraction", params["validation_fraction"], least=0, below=1)
        return params, training.classifier_config(params, cases)

    def _preprocess_collection(self, X: Any, store_metadata: bool = True) -> Any:
        if isinstance(X, list) and not X:
            raise ValueError("X must hold at least one case, got an empty list")
        X = super()._preprocess_collection(X, store_metadata)
        arrays.check_finite(X)
        return X

    def _check_X(self, X: Any) -> dict[str, Any]:
        """Return aeon's metadata, without its warning about constant series."""
        if get_type(X) == "np-list":
            arrays.check_channels(X)
        metadata: dict[str, Any] = self._get_X_metadata(X)
        return metadata

    def _check_shape(self, X: Any) -> None:
        expected, found = self.metadata_["n_channels"], get_n_channels(X)
        if found != expected:
            raise ValueError(f"X must have {expected} channels, as in fit, got {found}")

    def _check_y(
        self, y: Any, n_cases: int, update_classes: bool = True, allow_single_class: bool = False
    ) -> Any:
        """Accept lists too, and a single class outside of fit."""
        y = np.asarray(y) if isinstance(y, list | tuple) else y
        return super()._check_y(
            y, n_cases, update_classes, allow_single_class or not update_classes
        )

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"dim": 8, "depth": 1, "heads": 2, "epochs": 2}
