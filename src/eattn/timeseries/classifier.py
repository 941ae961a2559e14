"""EAClassifier: time-series classification with the interface of scikit-learn and aeon."""

import copy
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from eattn._checks import check_bool, check_number, check_size
from eattn.models.random_kernels import KERNELS, choose_dilations
from eattn.models.shape_classifier import ShapeState
from eattn.nn import check_mixer
from eattn.timeseries import arrays, store, training
from eattn.timeseries.arrays import Sample
from eattn.train import History, TrainConfig

try:
    from aeon.classification.base import BaseClassifier
    from aeon.utils.validation.collection import get_n_channels, get_type
    from sklearn.utils.class_weight import compute_class_weight
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'EAClassifier needs the package aeon: pip install "eattn[timeseries]"'
    ) from error

MAX_TOKENS = 128  # largest number of tokens, unless `stride` is set or `causal`
SHARES = 4000  # of outputs above thresholds, approximately: features of the kernels
StreamState = tuple[ShapeState, ...]
NETWORK = ("mixer", "dim", "depth", "heads", "ffn", "dropout", "causal")


@dataclass(eq=False, repr=False)
class EAClassifier(BaseClassifier):
    """Time-series classifier for scikit-learn and aeon.

    The probabilities combine two classifiers: a network with a convolutional stem and element-wise
    attention (`eattn.models.ShapeClassifier`), and ridge regression on the outputs of random
    convolutions (`eattn.models.KernelClassifier`).

    Series may have any number of channels, unequal lengths and missing values. Channels are
    standardised with the mean and standard deviation of the training data. A series longer than
    every training series is split, and the probabilities of its pieces are averaged. With
    `causal=True`, `predict_stream` classifies streams of any length after every sample.

    `fit`, `predict`, `predict_proba` and `score` are those of aeon's `BaseClassifier`. They accept
    X as an array [samples, channels, length], an array [samples, length] for one channel, or a
    list of arrays [channels, length]. NaN is a missing value, and NaN in all channels at either
    end of a series is padding. Labels y may have any type, also float and `pd.Categorical`; they
    are sorted, and categories that do not occur are ignored.

    Parameters
    ----------
    mixer : str, default "ea-6"
        Name of the mixer; see `eattn.nn.make_mixer`.
    dim : int, default 64
        Number of channels in the network.
    depth : int, default 2
        Number of Transformer blocks; 0 for a purely convolutional network.
    heads : int, default 8
        Number of heads, for mixers that have heads.
    ffn : int, optional
        Width of the feed-forward layers; by default 2 dim.
    dropout : float, default 0.0
        Dropout probability in the blocks.
    stride : int, optional
        Number of time points per token; by default the smallest that gives at most 128 tokens, or
        1 if `causal`.
    causal : bool, default False
        Read only earlier samples, so that `predict_stream` can classify streams. There are no
        kernels then.
    kernels : bool, default True
        Combine the network with ridge regression on random convolutions.
    ensemble : int, default 1
        Number of networks, trained one after the other with different seeds.
    epochs : int, optional
        Number of epochs; by default 30, or as many as make at least 400 steps.
    batch_size : int, default 16
        Number of series per step.
    optimizer : str, default "adamw"
        Name of the optimizer, as in `eattn.train.TrainConfig`.
    lr : float, default 2e-3
        Learning rate, after a warmup over a tenth of the steps.
    weight_decay : float, default 0.05
        Weight decay.
    schedule : str, default "cosine"
        Learning-rate schedule, as in `eattn.train.TrainConfig`.
    clip : float or None, default 1.0
        Largest norm of the gradient.
    label_smoothing : float, default 0.1
        Share of the target probability that is spread over all classes.
    augment : bool, default True
        Warp, slice and scale training series at random, and add noise.
    validation_fraction : float, default 0.0
        Fraction of each class used for validation, which selects the best epoch of a network.
        With 0, or if the fraction has fewer than 10 samples, networks train on all samples.
    patience : int or None, default 20
        Stop after this many epochs without improvement on the validation samples.
    class_weight : dict, "balanced" or None, default None
        Weight of the loss of each class, as in scikit-learn: {label: weight}, where classes that
        are not listed have weight 1, or "balanced" for n_samples / (n_classes * count).
    device : str, default "auto"
        Device to train on: "auto", "cpu" or "cuda".
    checkpoint : path, optional
        Folder for checkpoints, from which `fit` resumes an interrupted run.
    verbose : bool, default False
        Show progress.
    random_state : int, RandomState or None, default 0
        Seed of all random numbers.

    Attributes
    ----------
    classes_ : array, shape (classes,)
        Labels.
    model_ : ClassifierEnsemble
        Trained model.
    history_ : History or None
        Metrics of training of the first network; None after `load`.
    histories_ : list of History
        Metrics of training of each network; empty after `load`.
    scaler_ : Scaler
        Mean and standard deviation of the channels.
    flag_missing_ : bool
        Whether the model has extra channels that mark missing values.
    max_len_ : int
        Length of the longest training series.
    seed_ : int
        Seed of the run.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(2, rng.integers(10, 20))) + i % 2 for i in range(40)]
    >>> y = ["low", "high"] * 20
    >>> EAClassifier(dim=16, depth=1, epochs=20).fit(X, y).predict(X[:2])
    array(['low', 'high'], dtype='<U4')
    """

    _tags = {  # noqa: RUF012 (aeon defines tags this way)
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "X_inner_type": ["np-list", "numpy3D"],
        "algorithm_type": "deeplearning",
    }

    mixer: str = "ea-6"
    _: KW_ONLY
    dim: int = 64
    depth: int = 2
    heads: int = 8
    ffn: int | None = None
    dropout: float = 0.0
    stride: int | None = None
    causal: bool = False
    kernels: bool = True
    ensemble: int = 1
    epochs: int | None = None
    batch_size: int = 16
    optimizer: str = "adamw"
    lr: float = 2e-3
    weight_decay: float = 0.05
    schedule: str = "cosine"
    clip: float | None = 1.0
    label_smoothing: float = 0.1
    augment: bool = True
    validation_fraction: float = 0.0
    patience: int | None = 20
    class_weight: Mapping[Any, float] | str | None = None
    device: str = "auto"
    checkpoint: str | os.PathLike[str] | None = None
    verbose: bool = False
    random_state: int | np.random.RandomState | None = 0

    def __post_init__(self) -> None:
        super().__init__()

    def score(
        self,
        X: Any,
        y: Any,
        metric: Any = "accuracy",
        use_proba: bool = False,
        metric_params: dict[str, Any] | None = None,
    ) -> float:
        """Return the accuracy, or another metric of scikit-learn.

        Parameters
        ----------
        X : array or list
            Series as for `fit`.
        y : array, list or pd.Categorical
            Labels.
        metric : str or callable, default "accuracy"
            Name of a scikit-learn scorer, or a function of y and the predictions.
        use_proba : bool, default False
            Call the metric with probabilities instead of labels.
        metric_params : dict, optional
            Further arguments of the metric.

        Returns
        -------
        float
        """
        self._check_is_fitted()
        other, y = self, arrays.to_labels(y)
        if arrays.is_fractional(self.classes_):  # metrics would take them for regression targets
            other = copy.copy(self)
            y, other.classes_ = y.astype(self.classes_.dtype).astype(str), self.classes_.astype(str)
        found: float = super(EAClassifier, other).score(X, y, metric, use_proba, metric_params)
        return found

    def predict_stream(
        self, X: NDArray[Any], state: StreamState | None = None
    ) -> tuple[NDArray[np.float64], StreamState]:
        """Classify streams after every new sample, from a state of constant size.

        Requires `causal=True`. Leading samples that are NaN in all channels count as samples.

        Parameters
        ----------
        X : array, shape (streams, channels, length)
            Next samples of each stream; NaN for missing values.
        state : tuple of ShapeState, optional
            State after the samples before; None for new streams.

        Returns
        -------
        proba : array, shape (streams, length, classes)
            Probabilities after each sample.
        state : tuple of ShapeState
            State to continue with, of each network.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(20, 1, 9)), np.arange(20) % 2
        >>> classifier = EAClassifier(dim=8, depth=1, epochs=2, causal=True).fit(X, y)
        >>> first, state = classifier.predict_stream(X[:, :, :4])
        >>> proba, state = classifier.predict_stream(X[:, :, 4:], state)
        >>> np.allclose(proba[:, -1], classifier.predict_proba(X), atol=1e-5)
        True
        """
        self._check_is_fitted()
        if not self.model_.config.causal:
            raise ValueError("predict_stream needs a classifier with causal=True; fit one")
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 3 or not X.shape[2]:
            raise ValueError(
                "X must be an array [streams, channels, length] with at least one sample, got"
                f" shape {X.shape}"
            )
        self._check_shape(X)
        arrays.check_finite(X)
        x = arrays.to_batch(X, self.scaler_, flag_missing=self.flag_missing_)
        found = []
        with torch.inference_mode():
            for x_t in x.to(next(self.model_.parameters()).device).unbind(1):
                logits, state = self.model_.step(x_t, state)
                found.append(logits.double().cpu().softmax(-1))
        assert state is not None
        return torch.stack(found, 1).numpy(), state

    def save(self, folder: store.Folder, *, force: bool = False) -> None:
        """Save the fitted model as JSON and safetensors.

        Parameters
        ----------
        folder : path
            Folder to write.
        force : bool, default False
            Overwrite an existing model.
        """
        self._check_is_fitted()
        store.save_classifier(self, folder, force=force)

    @classmethod
    def load(cls, folder: store.Folder) -> Self:
        """Load a saved model to its device, or to the CPU if that is not available.

        Parameters
        ----------
        folder : path
            Folder written by `save`.

        Returns
        -------
        EAClassifier
        """
        loaded: Self = store.load_classifier(cls, folder)
        return loaded

    def _fit(self, X: list[Sample] | Sample, y: NDArray[Any]) -> Self:
        params, config = self._check_params(len(X))
        self.seed_ = config.seed
        self.scaler_, self.flag_missing_ = arrays.fit_scaler(X)
        if all(np.array_equal(x, X[0], equal_nan=True) for x in X):
            raise ValueError(f"X must contain different series, got {len(X)} identical ones")
        series = arrays.to_tensors(X, self.scaler_, flag_missing=self.flag_missing_)
        self.max_len_ = max(map(len, series))
        self.design_ = self._design(params)
        self.history_: History | None  # None after load
        self.model_, self.histories_ = training.train_classifier(
            series,
            np.searchsorted(self.classes_, y),
            self.design_,
            config,
            values=len(self.scaler_.mean),
            validation_fraction=params["validation_fraction"],
            class_weight=self._class_weight(params["class_weight"], y),
            label_smoothing=params["label_smoothing"],
            augmented=params["augment"],
            progress=bool(self.verbose),
        )
        self.history_ = self.histories_[0]
        return self

    def _predict(self, X: list[Sample] | Sample) -> NDArray[Any]:
        found: NDArray[Any] = self.classes_[self._predict_proba(X).argmax(1)]
        return found

    def _predict_proba(self, X: list[Sample] | Sample) -> NDArray[np.float64]:
        """Return the probabilities [samples, classes], averaged over the pieces of long series."""
        series = arrays.to_tensors(X, self.scaler_, flag_missing=self.flag_missing_)
        parts = [arrays.split_long(x, self.max_len_) for x in series]
        pieces = [piece for part in parts for piece in part]
        sample = torch.repeat_interleave(torch.tensor([len(part) for part in parts]).long())
        sums = torch.zeros(len(parts), self.n_classes_, dtype=torch.float64)
        with torch.inference_mode():
            found = [x.double().cpu().softmax(-1) for x in training.logits_of(self.model_, pieces)]
        if found:
            sums.index_add_(0, sample, torch.cat(found))
        return (sums / sums.sum(1, keepdim=True)).numpy()

    def _predict_prefixes(self, X: list[Sample]) -> list[NDArray[np.float64]]:
        """Return the probabilities [length, classes] after each sample of a causal classifier."""
        X = self._preprocess_collection(X, store_metadata=False)
        self._check_shape(X)
        series = arrays.to_tensors(X, self.scaler_, flag_missing=self.flag_missing_)
        with torch.inference_mode():
            batches = training.logits_of(self.model_, series, every=True)
            rows = [row for x in batches for row in x.double().cpu().softmax(-1)]
        return [row[: max(len(x), 1)].numpy() for row, x in zip(rows, series, strict=True)]

    def _design(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `make_classifier`; unset ones depend on the data."""
        sizes: dict[str, Any] = {
            "channels": len(self.scaler_.mean) * (2 if self.flag_missing_ else 1),
            "classes": self.n_classes_,
        }
        causal, stride, kernels = params["causal"], params["stride"], None
        if stride is None:
            stride = 1 if causal else -(-self.max_len_ // MAX_TOKENS)
        network = {name: params[name] for name in NETWORK} | sizes
        network |= {"stride": stride, "max_len": self.max_len_}
        if params["kernels"] and not causal:
            dilations = choose_dilations(self.max_len_)
            thresholds = max(1, round(SHARES / (KERNELS * len(dilations))))
            kernels = sizes | {"dilations": list(dilations), "thresholds": thresholds}
        return {"network": network, "kernels": kernels, "ensemble": params["ensemble"]}

    def _class_weight(self, chosen: Any, y: NDArray[Any]) -> NDArray[np.float64] | None:
        """Return the weight of each class, or None if all are 1."""
        if chosen is None:
            return None
        chosen = dict(chosen) if isinstance(chosen, Mapping) else chosen
        weight: NDArray[np.float64] = compute_class_weight(chosen, classes=self.classes_, y=y)
        if not (np.isfinite(weight).all() and (weight >= 0).all() and weight.any()):
            raise ValueError(
                f"class_weight must have finite weights >= 0, not all of them 0, got {chosen}"
            )
        return weight.astype(np.float64)

    def _check_params(self, samples: int) -> tuple[dict[str, Any], TrainConfig]:
        """Return the checked parameters and the training configuration."""
        params = store.plain_params(self)
        check_mixer(params["mixer"])
        for name in ("validation_fraction", "label_smoothing"):
            check_number(name, params[name], least=0, below=1)
        for name in ("causal", "kernels", "augment"):
            check_bool(name, params[name])
        check_size("ensemble", params["ensemble"])
        weight = params["class_weight"]
        if not isinstance(weight, Mapping | None) and str(weight) != "balanced":
            raise ValueError(f"class_weight must be a dict, 'balanced' or None, got {weight!r}")
        return params, training.classifier_config(params, samples)

    def _preprocess_collection(self, X: Any, store_metadata: bool = True) -> Any:
        if (isinstance(X, list) and not X) or getattr(X, "shape", ())[:1] == (0,):
            raise ValueError(f"X must contain at least one series, got an empty {type(X).__name__}")
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
            raise ValueError(f"X must have {expected} channels as in fit, got {found}")

    def _check_y(
        self, y: Any, n_cases: int, update_classes: bool = True, allow_single_class: bool = False
    ) -> Any:
        """Return labels of any type as an array; outside of fit, they may be of a single class."""
        y = arrays.to_labels(y)
        classes, codes = np.unique(y, return_inverse=True)
        if update_classes:
            arrays.check_not_regression(y, classes)
        single = allow_single_class or not update_classes
        super()._check_y(codes, n_cases, update_classes, single)
        if update_classes:
            self.classes_ = classes
            self._class_dictionary = {label: i for i, label in enumerate(classes)}
        return y

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"dim": 8, "depth": 1, "heads": 2, "epochs": 2}
