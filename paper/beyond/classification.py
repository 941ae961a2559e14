"""Beyond the paper: classification.

Is `EAClassifier` a classifier to choose? With default parameters it is trained on 40 sets of the
UCR archive and 10 of the UEA archive, next to MiniRocket, MultiRocketHydra and QUANT of aeon in the
same run. Three sets have series of unequal length, which aeon's classifiers need padded; they are
reported apart, and means and ranks use the other 47. On 20 sets of at most 512 samples the network
alone, without the kernels, is trained with element-wise attention, with softmax attention, with a
GRU, and without any mixer, which shows what the mixer contributes beyond the convolutions. On 8
sets `EarlyClassifier` decides before the end of the series, next to TEASER of aeon.

Everything was chosen on the training splits. The split `dev` of the plan holds a third of each
training split out and never reads a test split.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from statistics import fmean
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from eattn.data import read_ts
from eattn.nn import check_mixer
from paper.forecasting.files import data_file
from paper.harness.chart import BLUE, GREY, Chart, Look, Panel
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog, group, rows_of
from paper.harness.scores import Mean, means, seeds_note
from paper.harness.settings import defaults, key_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Classification"
OURS = "EAClassifier"
MINI, MULTI = "MiniRocket", "MultiRocketHydra"
ROCKETS = "aeon.classification.convolution_based"
OTHERS = {  # classes of aeon
    MINI: (ROCKETS, "MiniRocketClassifier"),
    MULTI: (ROCKETS, "MultiRocketHydraClassifier"),
    "QUANT": ("aeon.classification.interval_based", "QUANTClassifier"),
}
MODELS = (OURS, *OTHERS)
OUR_EARLY = "EarlyClassifier"
EARLY_OTHERS = {"TEASER": ("aeon.classification.early_classification", "TEASER")}
NO_MIXER = "none"
ABLATED = ("ea-6", "sa", "gru", NO_MIXER)
PAPER_SETS = ("JapaneseVowels", "SelfRegulationSCP1", "SelfRegulationSCP2", "UWaveGestureLibrary")
UEA = (*PAPER_SETS, "BasicMotions", "Epilepsy", "Libras", "NATOPS", "PenDigits", "RacketSports")
UCR = (
    *("Adiac", "ArrowHead", "BME", "Beef", "BeetleFly", "BirdChicken", "CBF", "Car", "Chinatown"),
    *("Coffee", "Computers", "DistalPhalanxTW", "ECG200", "Earthquakes", "FaceFour"),
    *("GestureMidAirD2", "GesturePebbleZ1", "GunPoint", "Ham", "Herring", "InsectEPGSmallTrain"),
    *("ItalyPowerDemand", "Lightning7", "Meat", "OSULeaf", "OliveOil", "Plane", "PowerCons"),
    *("ProximalPhalanxTW", "RefrigerationDevices", "ScreenType", "SmoothSubspace"),
    *("SonyAIBORobotSurface1", "SwedishLeaf", "SyntheticControl", "ToeSegmentation2", "Trace"),
    *("TwoLeadECG", "UMD", "Wine"),
)
UNEQUAL = ("JapaneseVowels", "GestureMidAirD2", "GesturePebbleZ1")
# Accuracy of InceptionTime on the default splits, as published.
PUBLISHED = dict(zip(PAPER_SETS, (0.970, 0.863, 0.472, 0.909), strict=True))
SHORTEST = 10  # samples that MultiRocketHydra needs
HELD_OUT = 1 / 3  # share of a training split that the split `dev` holds out
STREAMED = 200  # samples of which the time is measured
LEVEL = 0.05  # of the tests whether two models differ


@dataclass(frozen=True)
class Plan:
    """Sets, and the classifiers to train on them."""

    sets: tuple[str, ...] = UCR + UEA
    models: tuple[str, ...] = MODELS
    mixers: tuple[str, ...] = ABLATED
    ablated: tuple[str, ...] = (
        *("ArrowHead", "Beef", "CBF", "ECG200", "FaceFour", "GunPoint", "Ham", "Lightning7"),
        *("OSULeaf", "Plane", "SwedishLeaf", "SyntheticControl", "ToeSegmentation2", "Trace"),
        *("BasicMotions", "Epilepsy", "JapaneseVowels", "NATOPS", "RacketSports"),
        "UWaveGestureLibrary",
    )
    early: tuple[str, ...] = (
        *("CBF", "ECG200", "GunPoint", "ItalyPowerDemand", "Lightning7", "Plane"),
        *("SyntheticControl", "Trace"),
    )
    early_models: tuple[str, ...] = (OUR_EARLY, *EARLY_OTHERS)
    seeds: int = 3
    split: str = "test"  # or "dev", which reads training splits only
    epochs: int | None = None  # of our networks; the default of EAClassifier
    jobs: int | None = None  # runs side by side; one per core by default

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all runs."""
        own = key_of(self, DEFAULTS)
        for seed in range(self.seeds):
            for data in self.sets:
                for model in self.models:
                    yield {"what": "accuracy", "model": model, "data": data, "seed": seed} | own
        for data in self.ablated:
            for mixer in self.mixers:
                yield {"what": "mixer", "mixer": mixer, "data": data, "seed": 0} | own
        for data in self.early:
            for model in self.early_models:
                yield {"what": "early", "model": model, "data": data, "seed": 0} | own


DEFAULTS = defaults(Plan, after="seeds")


def plan(quick: bool) -> Plan:
    """Return the full plan, or one with a few small sets and one seed."""
    if not quick:
        return Plan()
    few = ("GunPoint", "ItalyPowerDemand", "RacketSports", "JapaneseVowels")
    return replace(Plan(sets=few, ablated=few[:2], early=few[:1]), seeds=1)


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Measure all keys of the plan, several side by side."""
    for mixer in set(plan.mixers) - {NO_MIXER}:
        check_mixer(mixer)
    if plan.split not in ("test", "dev"):
        raise ValueError(f"split must be test or dev, got {plan.split!r}")
    for data in {*plan.sets, *plan.ablated, *plan.early}:
        _file(data, "TRAIN")
    yield from run_all(log, list(plan.keys()), measure_run, jobs=plan.jobs)


# ---- one run -------------------------------------------------------------------------------------

Labelled = tuple[list[NDArray[np.float64]], NDArray[Any]]


def measure_run(key: Key) -> Row:
    """Train and evaluate one classifier."""
    measure: Mapping[str, Callable[[Key], Row]] = {
        "accuracy": measure_accuracy,
        "mixer": measure_mixer,
        "early": measure_early,
    }
    return measure[key["what"]](key)


def measure_accuracy(key: Key) -> Row:
    train, test = load(key["data"], key.get("split") or "test")
    if key["model"] == OURS:
        return _evaluate(_ours(key), train, test)
    module, name = OTHERS[key["model"]]
    model = getattr(import_module(module), name)(random_state=key["seed"])
    length = max(SHORTEST, *(x.shape[1] for X, _ in (train, test) for x in X))
    with warnings.catch_warnings(action="ignore"):  # those of aeon are not about this study
        return _evaluate(model, *((pad(X, length), y) for X, y in (train, test)))


def measure_mixer(key: Key) -> Row:
    """Train the network alone with one mixer."""
    if key["mixer"] == NO_MIXER:
        model = _ours(key, kernels=False, depth=0)
    else:
        model = _ours(key, kernels=False, mixer=key["mixer"])
    return _evaluate(model, *load(key["data"], key.get("split") or "test"))


def measure_early(key: Key) -> Row:
    """Train an early classifier; measure accuracy, earliness and, for ours, the time per sample."""
    (X, y), (test, labels) = load(key["data"], key.get("split") or "test")
    start = time.perf_counter()
    if key["model"] != OUR_EARLY:
        module, name = EARLY_OTHERS[key["model"]]
        length = max(x.shape[1] for x in (*X, *test))
        model = getattr(import_module(module), name)(random_state=key["seed"])
        with warnings.catch_warnings(action="ignore"):
            model.fit(pad(X, length), y)
            seconds = time.perf_counter() - start
            _, accuracy, earliness = model.score(pad(test, length), labels)
        return {"accuracy": accuracy, "earliness": earliness, "fit_seconds": seconds}
    from eattn.timeseries import EarlyClassifier

    early = EarlyClassifier(_ours(key, causal=True), random_state=key["seed"]).fit(X, y)
    seconds = time.perf_counter() - start
    score = early.evaluate(test, labels)
    return {
        "accuracy": score.accuracy,
        "earliness": score.earliness,
        "fit_seconds": seconds,
        "sample_seconds": _seconds_per_sample(early, test[0]),
    }


def _seconds_per_sample(early: Any, x: NDArray[np.float64]) -> float:
    """Return the median time of reading one sample of one stream."""
    state, seconds = None, []
    for t in range(STREAMED):
        sample = x[None, :, [t % x.shape[1]]]
        start = time.perf_counter()
        _, state = early.predict_stream(sample, state)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def _ours(key: Key, **options: Any) -> Any:
    from eattn.timeseries import EAClassifier

    return EAClassifier(random_state=key["seed"], epochs=key.get("epochs"), **options)


def _evaluate(model: Any, train: tuple[Any, Any], test: tuple[Any, Any]) -> Row:
    """Return the accuracy on the test split, and the seconds of both calls."""
    start = time.perf_counter()
    model.fit(*train)
    fitted = time.perf_counter()
    labels = model.predict(test[0])
    predicted = time.perf_counter()
    return {
        "accuracy": float((labels == test[1]).mean()),
        "fit_seconds": fitted - start,
        "predict_seconds": predicted - fitted,
        "cases": len(test[1]),
    }


def load(data: str, split: str) -> tuple[Labelled, Labelled]:
    """Return the series to train on and those to predict, with their labels.

    The split `dev` divides the training split, with at least one series of a class in both parts
    if the class has two.
    """
    train = _read(data, "TRAIN")
    if split == "test":
        return train, _read(data, "TEST")
    X, y = train
    rng, held = np.random.default_rng(0), np.zeros(len(y), bool)
    for label in np.unique(y):
        own = rng.permutation(np.flatnonzero(y == label))
        held[own[: min(max(1, round(HELD_OUT * len(own))), len(own) - 1)]] = True
    parts = [[i for i in range(len(y)) if held[i] == each] for each in (False, True)]
    first, second = (([X[i] for i in part], y[part]) for part in parts)
    return first, second


def pad(X: Sequence[NDArray[np.float64]], length: int) -> NDArray[np.float64]:
    """Return series as one array [series, channels, length], with 0 after their end."""
    batch = np.zeros((len(X), len(X[0]), length))
    for row, x in zip(batch, X, strict=True):
        row[:, : x.shape[1]] = x
    return batch


def _read(data: str, split: str) -> Labelled:
    cases = read_ts(_file(data, split))
    assert cases.y is not None
    return cases.X, cases.y


def _file(data: str, split: str) -> Any:
    folder = (data,)
    if data not in PAPER_SETS:
        folder = ("classification", "UEA" if data in UEA else "UCR", data)  # type: ignore[assignment]
    return data_file(*folder, f"{data}_{split}.ts.gz")


# ---- summaries -----------------------------------------------------------------------------------


def variants(rows: Rows) -> dict[str, list[Row]]:
    """Split rows by their split and settings; rows at the defaults come first, without a name."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = ", ".join(f"{n} {row[n]}" for n in DEFAULTS if row.get(n) is not None)
        found.setdefault(name, []).append(row)
    return dict(sorted(found.items()))


def accuracies(rows: Rows) -> dict[str, dict[str, Mean]]:
    """Return the accuracy of each model by set."""
    found = group(rows_of(rows, "accuracy"), "model")
    return {model: means(found[model], "accuracy", "data") for model in MODELS if model in found}


def common(found: Mapping[str, Mapping[str, Mean]]) -> list[str]:
    """Return the sets of equal length on which all models have a score."""
    shared = set.intersection(*(set(of) for of in found.values())) if found else set()
    return [data for data in UCR + UEA if data in shared and data not in UNEQUAL]


def ranks(found: Mapping[str, Mapping[str, Mean]], sets: Sequence[str]) -> dict[str, float]:
    """Return the mean rank of each model over the sets; equal scores share a rank."""
    scores = np.array([[of[data].value for data in sets] for of in found.values()])
    above = (scores[:, None] < scores[None]).sum(1)
    equal = (scores[:, None] == scores[None]).sum(1)
    mean = (above + (equal + 1) / 2).mean(1)
    return dict(zip(found, mean.tolist(), strict=True))


def mean_accuracy(of: Mapping[str, Mean], sets: Sequence[str]) -> float:
    """Return the mean over sets of one model."""
    return fmean(of[data].value for data in sets)


def _default(rows: Rows) -> list[Row]:
    return variants(rows).get("", [])


def _behind(rows: Rows, *, model: str) -> float:
    """Return how much the mean accuracy of a model exceeds ours, over all 47 sets."""
    found = accuracies(_default(rows))
    if not {OURS, model} <= set(found):
        raise LookupError(f"there are no rows of {OURS} and {model}")
    pair = {name: found[name] for name in (OURS, model)}
    sets = common(pair)
    if len(sets) < len(UCR + UEA) - len(UNEQUAL):
        raise LookupError(f"only {len(sets)} sets have scores of {OURS} and {model}")
    return fmean(pair[model][data].value - pair[OURS][data].value for data in sets)


def _accuracy(rows: Rows, *, data: str) -> float:
    found = accuracies(_default(rows)).get(OURS, {})
    if data not in found:
        raise LookupError(f"there is no row of {data}")
    return found[data].value


def _gain(rows: Rows) -> float:
    """Return the mean gain in accuracy of EA over no mixer."""
    found = _by_mixer(_default(rows))
    sets = [data for data in found.get("ea-6", {}) if data in found.get(NO_MIXER, {})]
    if not sets:
        raise LookupError("there are no rows with and without a mixer")
    return fmean(found["ea-6"][data] - found[NO_MIXER][data] for data in sets)


TARGETS = (
    Target(f"mean of 47 sets, {MULTI} minus {OURS}", partial(_behind, model=MULTI), at_most=0.015),
    Target(f"mean of 47 sets, {MINI} minus {OURS}", partial(_behind, model=MINI), at_most=0.01),
    *(
        Target(f"{data}: accuracy", partial(_accuracy, data=data), at_least=least)
        for data, least in (
            ("OSULeaf", 0.93),
            ("ArrowHead", 0.84),
            ("UWaveGestureLibrary", 0.91),
            ("JapaneseVowels", 0.975),
            ("SelfRegulationSCP1", 0.87),
        )
    ),
    Target("20 sets, EA minus no mixer: accuracy", _gain, at_least=0.0),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the tables of each variant of the settings."""
    for name, own in variants(rows).items():
        for table in (*_accuracy_tables(own), *_mixer_table(own), *_early_table(own)):
            yield replace(table, title=table.title + f" ({name})" * bool(name))


def _accuracy_tables(rows: Rows) -> Iterator[Table]:
    found = accuracies(rows)
    if not found:
        return
    sets, models = common(found), list(found)
    if sets:
        rank, lines = ranks(found, sets), []
        kinds = {"all": sets} | {
            f"{kind}, {len(some)} sets": some
            for kind, archive in (("univariate", UCR), ("multivariate", UEA))
            if (some := [data for data in sets if data in archive])
        }
        for model, of in found.items():
            own = [r for r in rows_of(rows, "accuracy") if r["model"] == model]
            seconds = [r["fit_seconds"] + r["predict_seconds"] for r in own if r["data"] in sets]
            mean = [f"{mean_accuracy(of, some):.4f}" for some in kinds.values()]
            lines.append([model, *mean, f"{rank[model]:.2f}", f"{fmean(seconds):.1f}"])
        head = ["model", *kinds, "mean rank", "seconds per set"]
        note = "Mean accuracy, and seconds of fit and predict on one core."
        yield Table(f"Accuracy over {len(sets)} sets of equal length", head, lines, [note])
    published = any(data in PUBLISHED for of in found.values() for data in of)
    head = ["set", *models, *(["InceptionTime, published"] if published else [])]
    body: list[list[str]] = []
    shown: list[Mean] = []
    for data in UCR + UEA:
        scores = [found[model].get(data) for model in models]
        if not any(scores):
            continue
        shown += [mean for mean in scores if mean]
        cells = [mean.text if mean else "" for mean in scores]
        if published:
            cells.append(f"{PUBLISHED[data]:.3f}" if data in PUBLISHED else "")
        body.append([data + " (unequal length)" * (data in UNEQUAL), *cells])
    note = "Series of unequal length are padded with 0 for the classifiers of aeon."
    yield Table("Accuracy by set", head, body, [f"{seeds_note(shown)} {note}"])


def _by_mixer(rows: Rows) -> dict[str, dict[str, float]]:
    found = group(rows_of(rows, "mixer"), "mixer")
    return {
        mixer: {row["data"]: row["accuracy"] for row in found[mixer]}
        for mixer in dict.fromkeys((*ABLATED, *found))
        if mixer in found
    }


def _mixer_table(rows: Rows) -> Iterator[Table]:
    found = _by_mixer(rows)
    if not found:
        return
    sets = list(dict.fromkeys(data for of in found.values() for data in of))
    lines = [[data, *(_text(of.get(data)) for of in found.values())] for data in sets]
    whole = [data for data in sets if all(data in of for of in found.values())]
    if whole:
        mean = [f"{fmean(of[data] for data in whole):.3f}" for of in found.values()]
        lines.append([f"mean of {len(whole)}", *mean])
    note = "The network alone, without kernels; `none` has only the convolutions. One seed."
    yield Table("Accuracy of the network by mixer", ["set", *found], lines, [note])


def _early_table(rows: Rows) -> Iterator[Table]:
    early = sorted(rows_of(rows, "early"), key=lambda row: (row["data"], row["model"]))
    if not early:
        return
    lines = []
    for row in early:
        numbers = [f"{row[n]:.3f}" for n in ("accuracy", "earliness")]
        speed = f"{row['sample_seconds'] * 1e6:.0f}" if "sample_seconds" in row else ""
        lines.append([row["data"], row["model"], *numbers, f"{harmonic_mean(row):.3f}", speed])
    for model, own in group(early, "model").items():
        numbers = [f"{fmean(row[n] for row in own):.3f}" for n in ("accuracy", "earliness")]
        lines.append(
            [f"mean of {len(own)}", model, *numbers, f"{fmean(map(harmonic_mean, own)):.3f}", ""]
        )
    head = ["set", "model", "accuracy", "earliness", "harmonic mean", "µs per sample"]
    note = "Earliness is the share of the series that was read; the harmonic mean is that of"
    note += " accuracy and 1 - earliness. One seed."
    yield Table("Early classification", head, lines, [note])


def harmonic_mean(row: Row) -> float:
    """Return the harmonic mean of accuracy and 1 - earliness."""
    from eattn.timeseries.early import EarlyScore

    return EarlyScore(row["accuracy"], row["earliness"]).harmonic_mean


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def cliques(scores: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the first and last of neighbouring models that do not differ, in the order of ranks.

    Models differ if the one-sided Wilcoxon test of their `scores` [sets, models] does, at a level
    of 5 % divided by the number of other models, as in the diagrams of aeon.
    """
    from aeon.benchmarking.stats import wilcoxon_test

    count = scores.shape[1]
    same = wilcoxon_test(scores, range(count)) > LEVEL / (count - 1)
    ends = [i + int(np.argmin([*same[i, i:], False])) - 1 for i in range(count)]
    return [
        (first, last)
        for first, last in enumerate(ends)
        if last > first and (first == 0 or last > ends[first - 1])
    ]


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw the mean ranks, and our accuracy against that of the rockets, a dot per set."""
    found = accuracies(next(iter(variants(rows).values()), []))
    drawn = [_scatter(found, model) for model in (MULTI, MINI) if {OURS, model} <= set(found)]
    if len(common(found)) > 1 and len(found) > 1:
        drawn.append(_rank_diagram(found))
    return Chart(drawn) if drawn else None


def _rank_diagram(found: Mapping[str, Mapping[str, Mean]]) -> Panel:
    """Draw mean ranks, and a bar over the models that do not differ."""
    sets = common(found)
    mean = dict(sorted(ranks(found, sets).items(), key=lambda item: item[1]))
    order = list(mean)
    scores = np.array([[found[model][data].value for model in order] for data in sets])
    points: list[dict[str, Any]] = [
        {"series": model, "y": model, "x": rank, "text": f"{rank:.2f}"}
        for model, rank in mean.items()
    ]
    bars: list[dict[str, Any]] = [
        {"y": " " * (i + 1), "x": mean[order[first]], "end": mean[order[last]]}
        for i, (first, last) in enumerate(cliques(scores))
    ]
    y = alt.Y("y:N", sort=[*order, *(bar["y"] for bar in bars)], title=None)
    scale = alt.Scale(domain=[1, len(order)], nice=False, padding=12)
    x = alt.X("x:Q", title="mean rank (1 is best)", scale=scale).axis(tickCount=2 * len(order))
    y = y.axis(grid=False, ticks=False, labelPadding=8, labelLimit=200)
    dots = alt.Chart(alt.Data(values=points)).encode(x=x, y=y)
    joined = alt.Chart(alt.Data(values=bars)).mark_rule(color=GREY, strokeWidth=5)
    body = alt.layer(
        joined.encode(x=x, x2="end:Q", y=y),
        dots.mark_point(filled=True, color=BLUE, size=60).encode(tooltip=["series:N", "x:Q"]),
        dots.mark_text(align="left", dx=8).encode(text="text:N"),
    )
    title = f"Mean rank on {len(sets)} sets; a bar joins models without a significant difference"
    height = 28 * (len(points) + len(bars)) + 30
    return Panel(title, body, {OURS: Look(BLUE)}, columns=6, height=height, legend=False)


def _scatter(found: Mapping[str, Mapping[str, Mean]], model: str) -> Panel:
    points: list[dict[str, Any]] = [
        {"series": data, "x": found[model][data].value, "y": found[OURS][data].value}
        for data in common({OURS: found[OURS], model: found[model]})
    ]
    both = [point[axis] for point in points for axis in "xy"]
    least = min(both, default=0.0)
    scale = alt.Scale(domain=[least, 1.0], nice=False)
    axes = {
        "x": alt.X("x:Q", title=f"accuracy of {model}", scale=scale),
        "y": alt.Y("y:Q", title=f"accuracy of {OURS}", scale=scale),
    }
    dots = alt.Chart(alt.Data(values=points)).mark_point(filled=True, color=BLUE, size=40)
    ends = [{"x": least, "y": least}, {"x": 1.0, "y": 1.0}]
    line = alt.Chart(alt.Data(values=ends)).mark_line(color=GREY, strokeWidth=1)
    body = alt.layer(line.encode(**axes), dots.encode(tooltip=["series:N", "x:Q", "y:Q"], **axes))
    return Panel(f"{OURS} against {model}", body, {OURS: Look(BLUE)}, legend=False)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the sets on which another classifier is better by at least 0.02."""
    found = accuracies(_default(rows))
    for model in found:
        worse = _worse(found, model) if model != OURS and OURS in found else []
        if worse:
            yield f"`{model}` is better by 0.02 or more on {len(worse)} sets: {', '.join(worse)}."
    mixers = _by_mixer(_default(rows))
    own, without = mixers.get("ea-6", {}), mixers.get(NO_MIXER, {})
    better = [data for data in own if without.get(data, 0.0) > own[data]]
    if better:
        yield f"The network without a mixer is better than with EA on {', '.join(better)}."


def _worse(found: Mapping[str, Mapping[str, Mean]], model: str) -> list[str]:
    return [
        f"{data} {of.value:.3f} ({OURS} {found[OURS][data].value:.3f})"
        for data, of in found[model].items()
        if data in found[OURS] and of.value >= found[OURS][data].value + 0.02
    ]
