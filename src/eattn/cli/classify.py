"""`eattn classify fit | predict | score`: classify the series of a `.ts` file."""

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn.cli.output import check_out, write_text
from eattn.cli.processes import Checkpoint, Fsdp
from eattn.cli.source import DataDir, blaming, read_cases

if TYPE_CHECKING:
    from eattn.data import Cases
    from eattn.timeseries import EAClassifier

app = typer.Typer(
    help="Fit and apply time-series classifiers.\n\n"
    "Example: eattn classify fit TRAIN.ts --out model/"
)

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder written by fit.")]
Test = Annotated[
    str, typer.Argument(metavar="TEST", help=".ts file, or a known dataset: its test split.")
]


@app.command("fit")
def fit(
    train: Annotated[
        str, typer.Argument(metavar="TRAIN", help=".ts file, or a known dataset: its train split.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Folder of the model.")],
    mixer: Annotated[str, typer.Option("--mixer", help="ea-6, sa, gru, or any other.")] = "ea-6",
    epochs: Annotated[int | None, typer.Option("--epochs", help="Maximum.")] = None,
    dim: Annotated[int | None, typer.Option("--dim", help="Width of the model.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", help="Number of blocks.")] = None,
    patch: Annotated[int | None, typer.Option("--patch", help="Samples per token.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Cases per step.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate.")] = None,
    validation: Annotated[float | None, typer.Option(help="Fraction for validation.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, …")] = "auto",
    data_dir: DataDir = None,
    checkpoint: Checkpoint = None,
    fsdp: Fsdp = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a model.")] = False,
) -> None:
    """Fit a classifier to labelled series and save it in a folder.

    Series may differ in length and have missing values (?). Other defaults are those of
    EAClassifier. `torchrun --nproc-per-node 2 -m eattn classify fit …` trains in several processes.
    Example: eattn classify fit JapaneseVowels --out model/ --epochs 30
    """
    from eattn.timeseries.store import check_free

    check_free(out, force=force)
    cases = read_cases(train, "train", data_dir)
    labels = _labels(cases)
    if labels is None:
        raise ValueError(f"{train} has no class labels to learn from")
    if len(set(labels)) < 2:
        raise ValueError(f"{train} has one class only, {labels[0]!r}: two are needed to learn from")

    from eattn.timeseries import EAClassifier
    from eattn.train import torchrun

    chosen: dict[str, Any] = dict(epochs=epochs, dim=dim, depth=depth, patch=patch, lr=lr)
    chosen |= dict(batch_size=batch_size, checkpoint=checkpoint, validation_fraction=validation)
    chosen = {name: value for name, value in chosen.items() if value is not None}
    model = EAClassifier(mixer, device=device, random_state=seed, verbose=True, **chosen)
    model._check_params(len(cases.X))  # errors in options must not blame the file
    with torchrun(fsdp=fsdp) as processes:
        with blaming(train):
            model.fit(cases.X, cases.y)
        processes.on_first_rank(lambda: model.save(out, force=force))
        if processes.first:
            print(f"{out}: {_summary(model)}")


@app.command("predict")
def predict(
    model: Model,
    test: Test,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="CSV file; stdout by default.")
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add probabilities.")] = False,
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Predict the label of each series as CSV, and the accuracy if the file has labels.

    Example: eattn classify predict model/ TEST.ts --out predictions.csv --proba
    """
    check_out("--out", out, force=force)
    classifier, cases, probabilities = _apply(model, test, data_dir)
    classes = classifier.classes_
    predicted = classes[probabilities.argmax(1)]
    rows: list[Sequence[Any]] = [["case", "label", *(f"p({c})" for c in classes if proba)]]
    for number, (label, row) in enumerate(zip(predicted, probabilities, strict=True), 1):
        rows.append([number, label, *(f"{p:.6g}" for p in row if proba)])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(text.getvalue(), out)
    accuracy = _accuracy(cases, classes, predicted)
    if accuracy is not None:
        print(accuracy, file=sys.stderr)


@app.command("score")
def score(model: Model, test: Test, data_dir: DataDir = None) -> None:
    """Print the accuracy on labelled series.

    Example: eattn classify score model/ TEST.ts
    """
    classifier, cases, probabilities = _apply(model, test, data_dir)
    if _labels(cases) is None:
        raise ValueError(f"{test} has no class labels to compare with")
    classes = classifier.classes_
    accuracy = _accuracy(cases, classes, classes[probabilities.argmax(1)])
    if accuracy is None:
        known = ", ".join(map(str, classes))
        raise ValueError(f"{test} has none of the model's labels, which are {known}")
    print(accuracy)


def _labels(cases: "Cases") -> list[str] | None:
    """Return the labels; None without labels, or with numbers as targets."""
    return None if cases.y is None or cases.y.dtype.kind == "f" else cases.y.tolist()


def _apply(model: Path, test: str, data_dir: Path | None) -> "tuple[EAClassifier, Cases, Any]":
    """Return the model, the cases, and the probabilities [cases, classes]."""
    from eattn.timeseries import EAClassifier

    classifier = EAClassifier.load(model)
    cases = read_cases(test, "test", data_dir)
    with blaming(test):
        return classifier, cases, classifier.predict_proba(cases.X)


def _accuracy(cases: "Cases", classes: Iterable[Any], predicted: Iterable[Any]) -> str | None:
    """Return the accuracy as text; None if no label is one of the model's."""
    labels = _labels(cases)
    if labels is None or not {str(c) for c in classes} & set(labels):
        return None
    right = sum(a == str(b) for a, b in zip(labels, predicted, strict=True))
    return f"accuracy {right / len(labels):.4f}: {right} of {len(labels)} cases"


def _summary(model: "EAClassifier") -> str:
    best = model.history_.best if model.history_ else None
    told = f"{model.n_classes_} classes, {model.metadata_['n_channels']} channels"
    if best is None:
        return f"{told}, last epoch kept"
    return (
        f"{told}, epoch {best.epoch} kept, validation accuracy {best.metrics['val_accuracy']:.4f}"
    )
