"""The table of README.md, computed from the rows."""

import re
from collections.abc import Callable, Iterator
from statistics import fmean, geometric_mean
from typing import Any

from paper.beyond import classification, forecasting, lm, recall
from paper.forecasting import classics, gift
from paper.forecasting.plan import FINE_TUNED, OURS, ZERO_SHOT
from paper.harness.experiment import PAPER, result
from paper.harness.runlog import Row, find_row, matches
from paper.harness.table import Table, seconds, size
from paper.pictures import NAMES

README = PAPER.parent / "README.md"
REGION = re.compile(r"(<!-- comparison -->\n).*(<!-- /comparison -->)", re.DOTALL)
SOFTMAX = NAMES["sa"]
POSITION = 16384
# What is compared, how to write a number, min or max (which is better), the other, both numbers.
Task = tuple[str, Callable[[float], str], Callable[[float, float], float], str, list[float]]


def filled(text: str) -> str:
    """Return README.md with the table of comparisons as the rows have it."""
    found = REGION.search(text)
    if found is None:
        raise ValueError("README.md must contain <!-- comparison --> and <!-- /comparison -->")
    body = comparison().markdown().partition("\n\n")[2]
    return text[: found.start()] + found[1] + body + "\n" + found[2] + text[found.end() :]


def comparison() -> Table:
    """Compare EA with what a user would take instead, in one line per task; bold is better."""
    body = []
    for task, show, best, other, (ours, theirs) in _tasks():
        cells = [show(ours), f"{other}: {show(theirs)}"]
        better = 0 if best(ours, theirs) == ours else 1
        cells[better] = f"**{cells[better]}**"
        body.append([task, *cells])
    return Table("Comparison", ["task", "EA", "instead"], body)


def _tasks() -> Iterator[Task]:
    rate, three = "{:.0f} tokens/s".format, "{:.3f}".format
    at: dict[str, Any] = {"what": "forward+backward", "grows": None}
    pair = [_row("op", who=who, **at)["p50"] for who in ("ours", "sdpa")]
    task = "operator, forward and backward, 16,384 tokens × 768 channels"
    yield task, seconds, min, f"{SOFTMAX} (SDPA)", pair
    pair = _pair("fig4", "tokens_per_second", what="time", L=8192, batch=1)
    yield "training step of BERT-base, 8,192 tokens", rate, max, SOFTMAX, pair
    pair = _pair("fig5", "tokens_per_second", what="prefill", L=POSITION, batch=1)
    yield "reading a prompt of 16,384 tokens, BERT-base", rate, max, SOFTMAX, pair
    at = {"what": "latency", "position": POSITION, "batch": 1}
    pair = _pair("fig5", "p50", **at)
    yield "decoding one token after 16,384, BERT-base", seconds, min, SOFTMAX, pair
    pair = _pair("fig5", "state_bytes", **at)
    yield "state after 16,384 tokens, BERT-base", size, min, SOFTMAX, pair
    pair = [_row("speculate", what="edit", edit=0.9, way=way)["p50"] for way in ("prefix", "sa")]
    task = "first token after an edit at 90 % of 16,384 tokens, BERT-base"
    yield task, seconds, min, f"{SOFTMAX}, keys and values kept", pair
    for steps in (lm.Plan.steps, lm.LONGEST):
        runs, mixers = result("lm").rows, (lm.FORGETTING, "sa+rope")
        pair = [lm.bits(runs, mixer, steps=steps) for mixer in mixers]
        task = f"bits per byte of Python sources, 3.2 M parameters, {steps:,} steps"
        yield f"{task}, `{lm.FORGETTING}`", three, min, f"{SOFTMAX} with rotary positions", pair
    for mixer, name in (("ea-6", ""), (recall.SMALL, f", `{recall.SMALL}` instead of EA-6")):
        pair = [recall.accuracy(result("recall").rows, each) for each in (mixer, "sa")]
        yield f"recall of 32 key-value pairs{name}", "{:.2f}".format, max, SOFTMAX, pair
    pair = [_mean("table3", "accuracy", mixer=mixer, protocol="clean") for mixer in NAMES]
    yield "accuracy, mean of the paper's four classification sets", three, max, SOFTMAX, pair
    found = classification.accuracies(result("classification").rows)
    sets, models = classification.common(found), (classification.OURS, classification.MULTI)
    pair = [classification.mean_accuracy(found[model], sets) for model in models]
    yield f"accuracy, mean of {len(sets)} UCR and UEA sets", three, max, models[1], pair
    rows = forecasting.variants(result("forecasting").rows)[""]
    for model, kind, other in (
        (ZERO_SHOT, "pretrained, 0.3 M parameters", "Chronos-Bolt small"),
        (OURS, "trained on each", "PatchTST"),
    ):
        large = f"{gift.PRETRAINED[other]} M parameters, " if model == ZERO_SHOT else ""
        for score in ("mase", "crps"):
            others = gift.published_relative(rows, score)[other]
            pair = [gift.mean(rows, score, model), geometric_mean(others.values())]
            task = f"{score.upper()} / seasonal naive, 25 tasks of GIFT-Eval, {kind}"
            yield task, three, min, f"{other} ({large}published)", pair
    for data, name, trained, kind in (
        ("m3", "m3, mean of its frequencies", FINE_TUNED, "fine-tuned"),
        ("tourism", "tourism, mean of its frequencies", FINE_TUNED, "fine-tuned"),
        (classics.CLASSICS, "54 well-known series", OURS, "trained on each"),
    ):
        of = classics.by_model(rows, data)
        for model, how in ((ZERO_SHOT, "pretrained"), (trained, kind)):
            yield f"MASE, {name}, {how}", three, min, "AutoETS", [of[model], of["AutoETS"]]


def _row(name: str, **fields: object) -> Row:
    return find_row(result(name).rows, **fields)


def _pair(name: str, field: str, **fields: object) -> list[float]:
    return [_row(name, mixer=mixer, **fields)[field] for mixer in NAMES]


def _mean(name: str, field: str, **fields: object) -> float:
    return fmean(row[field] for row in result(name).rows if matches(row, fields))
