"""EAClassifier: labels for time series, with scikit-learn's and aeon's manners."""

import os
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from eattn._checks import check_number
from eattn.nn import check_mixer
from eattn.timeseries import saved_classifier, store
from eattn.timeseries.arrays import Scaling, Series, check_channels, check_finite
from eattn.timeseries.classifying import learn, probabilities
from eattn.timeseries.settings import plain_params, seed_of
from eattn.train import History, TrainConfig

try:
    from aeon.classification.base import BaseClassifier
    from aeon.utils.validation.collection import get_n_channels, get_type
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'EAClassifier needs the package aeon: pip install "eattn[timeseries]"'
    ) from error

TOKENS = 128  # at most, where `patch` is left to us
EPOCHS, STEPS = 60, 600  # so many of both, where `epochs` is left to us
DESIGN = ("mixer", "dim", "depth", "heads", "dropout", "norm", "pooling", "positions")
TRAINING = (
    "batch_size",
    "optimizer",
    "lr",
    "weight_decay",
    "schedule",
    "clip",
    "patience",
    "device",
    "checkpoint",
)


class EAClassifier(BaseClassifier):
    """A Transformer encoder of any mixer over series of any length; no argument is required.

    X is an array [cases, channels, length], or [cases, length] for one channel, or a list of arrays
    [channels, length] of unequal length. NaN is a missing value; NaN in all channels before and
    after a series is padding. y are labels of any kind.

    Channels are standardised with their training mean and deviation. `patch` samples make a token;
    None: as few as give 128 tokens at most. `embed`: "conv" over neighbours or "linear"; None:
    "conv" for patch 1. `ffn` None: 2 dim. A series longer than any in training is read in pieces of
    that length, and their probabilities averaged. `epochs` None: 60, and more where these are fewer
    than 600 steps.

    A `validation_fraction` of each class is held out to keep the best epoch, and to stop after
    `patience` epochs without a better one; 0, or fewer than 10 cases in it: all are trained on, for
    all epochs. `device` is "auto" or one of torch's. `verbose` shows a progress bar. `checkpoint`
    is a folder that `fit` keeps its run in, and goes on from if that was cut off.

    Fitted: `classes_`, `model_` (a `SequenceClassifier`), `history_` (of `eattn.train`),
    `scaling_`, `max_len_` (of training series), `seed_`.

    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(2, rng.integers(10, 20))) + i % 2 for i in range(40)]
    >>> y = ["low", "high"] * 20
    >>> EAClassifier(dim=16, depth=1, epochs=20).fit(X, y).predict(X[:2])
    array(['low', 'high'], dtype='<U4')
    """

    history_: History | None  # None for a model that was loaded

    _tags = {  # noqa: RUF012, as aeon has it
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "X_inner_type": ["np-list", "numpy3D"],
        "algorithm_type": "deeplearning",
    }

    def __init__(
        self,
        mixer: str = "ea-6",
        *,
        dim: int = 128,
        depth: int = 3,
        heads: int = 8,
        ffn: int | None = None,
        dropout: float = 0.1,
        norm: str = "post",
        patch: int | None = None,
        embed: str | None = None,
        pooling: str = "flatten",
        positions: bool = True,
        epochs: int | None = None,
        batch_size: int = 16,
        optimizer: str = "radam",
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        schedule: str = "cosine",
        clip: float | None = 1.0,
        validation_fraction: float = 0.2,
        patience: int | None = 20,
        device: str = "auto",
        checkpoint: str | os.PathLike[str] | None = None,
        verbose: bool = False,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.mixer = mixer
        self.dim = dim
        self.depth = depth
        self.heads = heads
        self.ffn = ffn
        self.dropout = dropout
        self.norm = norm
        self.patch = patch
        self.embed = embed
        self.pooling = pooling
        self.positions = positions
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.clip = clip
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.random_state = random_state
        super().__init__()

    def save(self, folder: store.Folder, *, force: bool = False) -> None:
        """Write the fitted model as JSON and safetensors; `force` replaces a model there."""
        self._check_is_fitted()
        saved_classifier.save(self, folder, force=force)

    @classmethod
    def load(cls, folder: store.Folder) -> Self:
        """What `save` wrote, fitted; on a GPU if it was to be there and this machine has one."""
        return saved_classifier.load(cls, folder)

    def _fit(self, X: list[Series] | Series, y: NDArray[Any]) -> Self:
        params, config = self._checked(len(X))
        self.seed_ = config.seed
        self.scaling_ = Scaling.of(X)
        if all(np.array_equal(case, X[0], equal_nan=True) for case in X):
            raise ValueError(f"X must differ from case to case, got {len(X)} times the same series")
        series = self.scaling_(X)
        self.max_len_ = max(map(len, series))
        self.design_ = self._design(params)
        self.model_, self.history_ = learn(
            series,
            np.searchsorted(self.classes_, y),
            self.design_,
            config,
            validation_fraction=params["validation_fraction"],
            progress=bool(self.verbose),
        )
        return self

    def _predict(self, X: list[Series] | Series) -> NDArray[Any]:
        found: NDArray[Any] = self.classes_[self._predict_proba(X).argmax(1)]
        return found

    def _predict_proba(self, X: list[Series] | Series) -> NDArray[np.float64]:
        return probabilities(self.model_, self.scaling_(X), longest=self.max_len_)

    def _design(self, params: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `SequenceClassifier`, with what was left open decided by the data."""
        patch, embed, ffn = params["patch"], params["embed"], params["ffn"]
        if patch is None:
            patch = -(-self.max_len_ // TOKENS)
        return {name: params[name] for name in DESIGN} | {
            "channels": self.scaling_.channels,
            "classes": self.n_classes_,
            "max_len": self.max_len_,
            "patch": patch,
            "embed": ("conv" if patch == 1 else "linear") if embed is None else embed,
            "ffn": 2 * params["dim"] if ffn is None else ffn,
        }

    def _checked(self, cases: int) -> tuple[dict[str, Any], TrainConfig]:
        """The arguments in Python's own types, and the run they make of so many cases."""
        params = plain_params(self)
        check_mixer(params["mixer"])
        check_number("validation_fraction", params["validation_fraction"], least=0, below=1)
        config = TrainConfig(
            **{name: params[name] for name in TRAINING},
            epochs=EPOCHS if params["epochs"] is None else params["epochs"],
            seed=seed_of(params["random_state"]),
        )
        if params["epochs"] is None:  # an epoch of few cases is few steps
            per_epoch = -(-cases // config.batch_size)
            config = replace(config, epochs=max(EPOCHS, -(-STEPS // per_epoch)))
        return params, config

    def _preprocess_collection(self, X: Any, store_metadata: bool = True) -> Any:
        if isinstance(X, list) and not X:
            raise ValueError("X must hold at least one case, got an empty list")
        X = super()._preprocess_collection(X, store_metadata)
        check_finite(X)
        return X

    def _check_X(self, X: Any) -> dict[str, Any]:
        """What X is: anything that aeon knows, also constant series, of which aeon would warn."""
        if get_type(X) == "np-list":
            check_channels(X)
        metadata: dict[str, Any] = self._get_X_metadata(X)
        return metadata

    def _check_shape(self, X: Any) -> None:
        expected, found = self.metadata_["n_channels"], get_n_channels(X)
        if found != expected:
            raise ValueError(f"X must have {expected} channels, as in fit, got {found}")

    def _check_y(
        self, y: Any, n_cases: int, update_classes: bool = True, allow_single_class: bool = False
    ) -> Any:
        """Lists are welcome too, and one class will do where nothing is learnt from it."""
        y = np.asarray(y) if isinstance(y, list | tuple) else y
        return super()._check_y(
            y, n_cases, update_classes, allow_single_class or not update_classes
        )

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"dim": 8, "depth": 1, "heads": 2, "epochs": 2}
