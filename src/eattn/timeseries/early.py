"""EarlyClassifier: classify a series as soon as its first samples are enough."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.validation import check_is_fitted

from eattn._checks import check_number, check_size
from eattn.timeseries import arrays, store
from eattn.timeseries.classifier import EAClassifier, StreamState

THRESHOLDS = (*np.arange(0.30, 0.90, 0.05), *np.arange(0.90, 1.0, 0.01), 0.995, 0.999)
HOLDS = (0.0, 0.02, 0.05, 0.1)  # shares of the longest training series
Proba = NDArray[np.float64]


class EarlyScore(NamedTuple):
    """Accuracy, and the share of the series that was read."""

    accuracy: float
    earliness: float  # mean share of the samples read before the decision; lower is better

    @property
    def harmonic_mean(self) -> float:
        """Harmonic mean of accuracy and 1 - earliness."""
        spared = 1 - self.earliness
        total = self.accuracy + spared
        return 2 * self.accuracy * spared / total if total else 0.0


@dataclass(frozen=True)
class EarlyState:
    """State of streams that are classified early; its size is constant."""

    stream: StreamState | None
    label: NDArray[np.int64]  # most probable class of each stream, [streams]
    run: NDArray[np.int64]  # number of last samples at which it was probable enough
    decided: NDArray[np.int64]  # class of the decision, or -1 before it


@dataclass(eq=False, repr=False)
class EarlyClassifier(ClassifierMixin, BaseEstimator):
    """Classify a series before its end, when one class is probable enough.

    The decision falls when the probability of the same class has reached a threshold at `hold`
    samples in a row, or at the end of the series. Threshold and `hold` have the best harmonic mean
    of accuracy and earliness in a cross-validation on the training data.

    Parameters
    ----------
    classifier : EAClassifier, optional
        Classifier with `causal=True`; by default `EAClassifier(causal=True)`.
    folds : int, default 3
        Number of folds of the cross-validation; `fit` trains one more classifier than folds.
    random_state : int, default 0
        Seed of the folds.

    Attributes
    ----------
    classifier_ : EAClassifier
        Classifier trained on all samples.
    threshold_ : float
        Smallest probability of a decision.
    hold_ : int
        Number of samples in a row that must reach it.
    score_ : EarlyScore
        Accuracy and earliness in the cross-validation.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(40) % 2
    >>> X = rng.normal(size=(40, 1, 30)) + 2 * y[:, None, None]
    >>> early = EarlyClassifier(EAClassifier(dim=8, depth=1, epochs=20, causal=True)).fit(X, y)
    >>> labels, samples = early.predict_early(X)
    >>> bool(samples.mean() < 20), early.evaluate(X, y).accuracy > 0.9
    (True, True)
    """

    classifier: EAClassifier | None = None
    _: KW_ONLY
    folds: int = 3
    random_state: int = 0

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier and the stopping rule.

        Parameters
        ----------
        X : array or list
            Series as for `EAClassifier.fit`.
        y : array, list or pd.Categorical
            Labels.

        Returns
        -------
        EarlyClassifier
        """
        check_number("folds", check_size("folds", self.folds), least=2)
        base = EAClassifier(causal=True) if self.classifier is None else self.classifier
        if not base.causal:
            raise ValueError("classifier must have causal=True, got causal=False")
        y = arrays.to_labels(y)
        X = [np.atleast_2d(x) for x in X]
        fewest = int(np.unique(y, return_counts=True)[1].min())
        if fewest < 2:
            raise ValueError("y must have at least 2 samples of each class, got a class with 1")
        split = StratifiedKFold(
            min(self.folds, fewest), shuffle=True, random_state=self.random_state
        )
        found: list[Proba] = []
        labels: list[Any] = []
        for train, held in split.split(np.zeros(len(y)), y):
            fold = clone(base).fit([X[i] for i in train], y[train])
            found += fold._predict_prefixes([X[i] for i in held])
            labels += np.searchsorted(fold.classes_, y[held]).tolist()
        self.threshold_, self.hold_, self.score_ = choose_rule(found, labels)
        self.classifier_ = clone(base).fit(X, y)
        self.classes_ = self.classifier_.classes_
        return self

    def predict_early(self, X: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Predict the labels and the number of samples that were needed.

        Parameters
        ----------
        X : array or list
            Series as for `fit`. The samples before the first and after the last observation are
            not counted.

        Returns
        -------
        labels : array, shape (series,)
        samples : int64 array, shape (series,)
            Number of samples read before each decision.
        """
        check_is_fitted(self)
        found = self.classifier_._predict_prefixes([np.atleast_2d(x) for x in X])
        classes, stops = decide(found, self.threshold_, self.hold_)
        return self.classes_[classes], stops

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the label of each series; see `predict_early`."""
        return self.predict_early(X)[0]

    def evaluate(self, X: Any, y: Any) -> EarlyScore:
        """Return the accuracy and the earliness on labelled series.

        Parameters
        ----------
        X : array or list
            Series as for `fit`.
        y : array, list or pd.Categorical
            Labels.

        Returns
        -------
        EarlyScore
        """
        labels, stops = self.predict_early(X)
        lengths = [max(arrays.trim(np.atleast_2d(x)).shape[1], 1) for x in X]
        right = labels == arrays.to_labels(y)
        return EarlyScore(float(right.mean()), float((stops / lengths).mean()))

    def predict_stream(
        self, X: NDArray[Any], state: EarlyState | None = None
    ) -> tuple[list[Any], EarlyState]:
        """Read the next samples of streams, and decide as soon as possible.

        Parameters
        ----------
        X : array, shape (streams, channels, length)
            Next samples of each stream; NaN for missing values.
        state : EarlyState, optional
            State after the samples before; None for new streams.

        Returns
        -------
        labels : list
            Label of each stream, or None before its decision.
        state : EarlyState
            State to continue with.
        """
        check_is_fitted(self)
        if state is None:
            none = np.zeros(len(X), np.int64)
            state = EarlyState(None, none - 1, none, none - 1)
        proba, stream = self.classifier_.predict_stream(X, state.stream)
        state = replace(state, stream=stream)
        for each in proba.transpose(1, 0, 2):
            state = self._advance(state, each)
        labels = [None if c < 0 else self.classes_[c] for c in state.decided]
        return labels, state

    def save(self, folder: store.Folder, *, force: bool = False) -> None:
        """Save the classifier and the stopping rule; `EAClassifier.load` reads the folder, too.

        Parameters
        ----------
        folder : path
            Folder to write.
        force : bool, default False
            Overwrite an existing model.
        """
        check_is_fitted(self)
        rule = {"threshold": self.threshold_, "hold": self.hold_, "score": list(self.score_)}
        params = {"folds": int(self.folds), "random_state": int(self.random_state)}
        early = rule | {"params": params}
        store.save_classifier(self.classifier_, folder, force=force, early=early)

    @classmethod
    def load(cls, folder: store.Folder) -> Self:
        """Load a saved model.

        Parameters
        ----------
        folder : path
            Folder written by `save`.

        Returns
        -------
        EarlyClassifier
        """
        early, classifier = store.load_early(folder), EAClassifier.load(folder)
        fitted = cls(clone(classifier), **early["params"])
        fitted.classifier_, fitted.classes_ = classifier, classifier.classes_
        fitted.threshold_, fitted.hold_ = early["threshold"], early["hold"]
        fitted.score_ = EarlyScore(*early["score"])
        return fitted

    def _advance(self, state: EarlyState, proba: Proba) -> EarlyState:
        """Return the state after one more sample with these probabilities [streams, classes]."""
        label = proba.argmax(1)
        run = np.where(label == state.label, state.run, 0) + 1
        run = np.where(proba.max(1) >= self.threshold_, run, 0)
        decided = np.where((state.decided < 0) & (run >= self.hold_), label, state.decided)
        return EarlyState(state.stream, label, run, decided)


def choose_rule(found: Sequence[Proba], labels: Sequence[int]) -> tuple[float, int, EarlyScore]:
    """Return the threshold and hold with the best harmonic mean, and their score.

    `found` holds the probabilities [length, classes] after each sample of each series. Of equal
    rules, the one with the higher threshold wins.
    """
    longest, best = max(map(len, found)), None
    lengths = np.array([max(len(proba), 1) for proba in found])
    for hold in sorted({max(1, round(share * longest)) for share in HOLDS}):
        for threshold in THRESHOLDS:
            classes, stops = decide(found, threshold, hold)
            score = EarlyScore(
                float((classes == np.asarray(labels)).mean()), float((stops / lengths).mean())
            )
            if best is None or score.harmonic_mean >= best[2].harmonic_mean:
                best = float(threshold), hold, score
    assert best is not None
    return best


def decide(
    found: Sequence[Proba], threshold: float, hold: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the class of each series, and the number of samples before its decision."""
    classes, stops = [], []
    for proba in found:
        label = proba.argmax(1)
        enough = proba.max(1) >= threshold
        same = enough[1:] & enough[:-1] & (label[1:] == label[:-1])
        # Position of the first sample of each run; a run ends where `same` is False.
        starts = np.concatenate([[0], np.where(same, 0, np.arange(1, len(label)))])
        run = np.arange(len(label)) - np.maximum.accumulate(starts) + 1
        stop = np.flatnonzero(enough & (run >= hold))
        at = int(stop[0]) if len(stop) else len(label) - 1
        classes.append(int(label[at]))
        stops.append(at + 1)
    return np.array(classes), np.array(stops)
