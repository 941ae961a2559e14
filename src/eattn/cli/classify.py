"""`eattn classify fit | predict | score`: classify the series of a `.ts` file."""

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn.cli.common import (
    CsvOut,
    DataDir,
    Depth,
    Device,
    Dim,
    Epochs,
    ForceFiles,
    ForceModel,
    Lr,
    Mixer,
    Model,
    ModelOut,
    Seed,
    check_out,
    prefix_errors,
    read_samples,
    write_text,
)
from eattn.cli.processes import Checkpoint, Fsdp

if TYPE_CHECKING:
    from eattn.data import Cases
    from eattn.timeseries import EAClassifier

app = typer.Typer(
    help="Fit and apply time-series classifiers.\n\n"
    "Example: eattn classify fit TRAIN.ts --out model/"
)

Test = Annotated[
    str,
    typer.Argument(metavar="TEST", help=".ts file, or name of a known dataset (its test split)."),
]


@app.command("fit")
def fit(
    train: Annotated[
        str,
        typer.Argument(
            metavar="TRAIN", help=".ts file, or name of a known dataset (its training split)."
        ),
    ],
    out: ModelOut,
    mixer: Mixer = None,
    epochs: Epochs = None,
    dim: Dim = None,
    depth: Depth = None,
    stride: Annotated[
        int | None,
        typer.Option("--stride", metavar="N", min=1, help="Number of time points per token."),
    ] = None,
    ensemble: Annotated[
        int | None,
        typer.Option("--ensemble", metavar="N", min=1, help="Number of networks to average."),
    ] = None,
    causal: Annotated[
        bool,
        typer.Option("--causal", help="Read only earlier samples, to classify streams."),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", metavar="N", min=1, help="Number of series per step."),
    ] = None,
    lr: Lr = None,
    validation: Annotated[
        float | None,
        typer.Option(
            "--validation", metavar="FRACTION", help="Fraction of each class to validate on."
        ),
    ] = None,
    class_weight: Annotated[
        str | None,
        typer.Option(
            "--class-weight",
            metavar="NAME",
            help="balanced: weight rare classes as much as frequent ones.",
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    checkpoint: Checkpoint = None,
    fsdp: Fsdp = False,
    force: ForceModel = False,
) -> None:
    """Fit a classifier to labelled series and save it.

    Series may differ in length and have missing values (?). Options that are not set have the
    defaults of EAClassifier. To train in several processes, run
    `torchrun --nproc-per-node 2 -m eattn classify fit ...`.

    Example: eattn classify fit JapaneseVowels --out model/ --epochs 30
    """
    from eattn.timeseries.store import check_free

    check_free(out, force=force)
    samples = read_samples(train, "train", data_dir)
    labels = _labels(samples)
    if labels is None:
        raise ValueError(f"{train} has no class labels to train on")
    if len(set(labels)) < 2:
        raise ValueError(f"{train} has only one class, {labels[0]!r}; training needs at least two")

    from eattn.timeseries import EAClassifier
    from eattn.train import torchrun

    chosen: dict[str, Any] = dict(epochs=epochs, dim=dim, depth=depth, stride=stride, lr=lr)
    chosen |= dict(batch_size=batch_size, checkpoint=checkpoint, validation_fraction=validation)
    chosen |= dict(mixer=mixer, class_weight=class_weight, ensemble=ensemble, causal=causal)
    chosen = {name: value for name, value in chosen.items() if value is not None}
    model = EAClassifier(device=device, random_state=seed, verbose=True, **chosen)
    model._check_params(len(samples.X))  # an invalid option is not an error of the file
    with torchrun(fsdp=fsdp) as processes:
        with prefix_errors(train):
            model.fit(samples.X, samples.y)
        processes.on_first_rank(lambda: model.save(out, force=force))
        if processes.first:
            print(f"{out}: {_summary(model)}")


@app.command("predict")
def predict(
    model: Model,
    test: Test,
    out: CsvOut = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Add a column with the probability of each class.")
    ] = False,
    data_dir: DataDir = None,
    force: ForceFiles = False,
) -> None:
    """Predict the label of each series and write the labels as CSV.

    Prints the accuracy to stderr if the file has labels.

    Example: eattn classify predict model/ TEST.ts --out predictions.csv --proba
    """
    check_out("--out", out, force=force)
    classifier, samples, probabilities = _apply(model, test, data_dir)
    classes = classifier.classes_
    predicted = classes[probabilities.argmax(1)]
    rows: list[Sequence[Any]] = [["case", "label", *(f"p({c})" for c in classes if proba)]]
    for number, (label, row) in enumerate(zip(predicted, probabilities, strict=True), 1):
        rows.append([number, label, *(f"{p:.6g}" for p in row if proba)])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(text.getvalue(), out)
    accuracy = _accuracy(samples, classes, predicted)
    if accuracy is not None:
        print(accuracy, file=sys.stderr)


@app.command("score")
def score(model: Model, test: Test, data_dir: DataDir = None) -> None:
    """Print the accuracy on labelled series.

    Example: eattn classify score model/ TEST.ts
    """
    classifier, samples, probabilities = _apply(model, test, data_dir)
    if _labels(samples) is None:
        raise ValueError(f"{test} has no class labels to compare with")
    classes = classifier.classes_
    accuracy = _accuracy(samples, classes, classes[probabilities.argmax(1)])
    if accuracy is None:
        known = ", ".join(map(str, classes))
        raise ValueError(f"the model knows none of the labels in {test}; it was trained on {known}")
    print(accuracy)


def _labels(samples: "Cases") -> list[str] | None:
    """Return the labels, or None if there are none or the targets are numbers."""
    return None if samples.y is None or samples.y.dtype.kind == "f" else samples.y.tolist()


def _apply(model: Path, test: str, data_dir: Path | None) -> "tuple[EAClassifier, Cases, Any]":
    """Return the model, the samples and their probabilities [samples, classes]."""
    from eattn.timeseries import EAClassifier

    classifier = EAClassifier.load(model)
    samples = read_samples(test, "test", data_dir)
    with prefix_errors(test):
        return classifier, samples, classifier.predict_proba(samples.X)


def _accuracy(samples: "Cases", classes: Iterable[Any], predicted: Iterable[Any]) -> str | None:
    """Return the accuracy as text, or None if the model knows none of the labels."""
    labels = _labels(samples)
    if labels is None or not {str(c) for c in classes} & set(labels):
        return None
    right = sum(a == str(b) for a, b in zip(labels, predicted, strict=True))
    return f"accuracy {right / len(labels):.4f} ({right} of {len(labels)} samples)"


def _summary(model: "EAClassifier") -> str:
    best = model.history_.best if model.history_ else None
    summary = f"{model.n_classes_} classes, {model.metadata_['n_channels']} channels"
    if best is None:
        return f"{summary}, weights of the last epoch"
    accuracy = f"validation accuracy {best.metrics['val_accuracy']:.4f}"
    return f"{summary}, weights of epoch {best.epoch}, {accuracy}"
