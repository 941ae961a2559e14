"""The picture and the table of README.md, computed from the rows."""

import re
from statistics import fmean
from typing import Any

from paper.harness.chart import LOOKS, Chart, lines
from paper.harness.experiment import PAPER, result
from paper.harness.runlog import Row, find_row
from paper.harness.table import Table, seconds, size

README = PAPER.parent / "README.md"
PICTURE = PAPER.parent / "docs" / "assets" / "decoding.svg"
REGION = re.compile(r"(<!-- comparison -->\n).*(<!-- /comparison -->)", re.DOTALL)
NAMES = {"ea-6": "EA-6", "sa": "softmax attention"}
LOOKS_BY_NAME = {name: LOOKS[mixer] for mixer, name in NAMES.items()}
POSITION = 16384


def filled(text: str) -> str:
    """Return README.md with the table of comparisons as the rows have it."""
    found = REGION.search(text)
    if found is None:
        raise ValueError("README.md must contain <!-- comparison --> and <!-- /comparison -->")
    body = comparison().markdown().partition("\n\n")[2]
    return text[: found.start()] + found[1] + body + "\n" + found[2] + text[found.end() :]


def comparison() -> Table:
    """Compare EA-6 with what a user would take instead, in one line per task."""
    trained = {who: _row("op", "forward+backward", who=who, grows=None) for who in ("ours", "sdpa")}
    steps = _pair("fig4", "time", L=8192, batch=1)
    reads = _pair("fig5", "prefill", L=POSITION, batch=1)
    tokens = _pair("fig5", "latency", position=POSITION, batch=1)
    texts = _pair("lm", "run", short_conv=4, positions=False, seed=0)
    softmax = NAMES["sa"]
    body = [
        [
            "operator, forward and backward, 16,384 tokens × 768 channels",
            seconds(trained["ours"]["p50"]),
            f"{softmax} (SDPA): {seconds(trained['sdpa']['p50'])}",
        ],
        [
            "training step of BERT-base, 8,192 tokens",
            *_both("{tokens_per_second:.0f} tokens/s", steps),
        ],
        [
            "reading a prompt of 16,384 tokens, BERT-base",
            *_both("{tokens_per_second:.0f} tokens/s", reads),
        ],
        [
            "decoding one token after 16,384, BERT-base",
            seconds(tokens["ea-6"]["p50"]),
            f"{softmax}: {seconds(tokens['sa']['p50'])}",
        ],
        [
            "state after 16,384 tokens, BERT-base",
            size(tokens["ea-6"]["state_bytes"]),
            f"{softmax}: {size(tokens['sa']['state_bytes'])}",
        ],
        [
            "bits per byte of Python sources, 3.2 M parameters, 300 steps",
            *_both("{bits_per_byte:.3f}", texts),
        ],
        [
            "recall of 32 key-value pairs",
            f"{_recall('ea-6'):.2f}",
            f"**{softmax}: {_recall('sa'):.2f}**",
        ],
        [
            "accuracy, mean of the paper's four classification sets",
            f"{_accuracy('ea-6'):.3f}",
            f"**{softmax}: {_accuracy('sa'):.3f}**",
        ],
        [
            "mean absolute error, ETTh2, 12 steps ahead",
            f"{_error('ETTh2', 'ea-6'):.2f}",
            f"**LightGBM: {_error('ETTh2', 'lightgbm'):.2f}**",
        ],
        [
            "mean absolute error, Traffic, 12 steps ahead",
            f"{_error('Traffic', 'ea-6'):.3f}",
            f"LightGBM: {_error('Traffic', 'lightgbm'):.3f}",
        ],
    ]
    for cells in body:
        if "**" not in cells[2]:
            cells[1] = f"**{cells[1]}**"
    return Table("Comparison", ["task", "EA-6", "instead"], body)


def picture() -> Chart:
    """Draw time per token and bytes of the state against the position while decoding."""
    rows = [
        row
        for row in result("fig5").rows
        if row["what"] == "latency" and row["batch"] == 1 and row["mixer"] in NAMES
    ]

    def points(field: str, unit: float) -> list[dict[str, Any]]:
        return [
            {"series": NAMES[row["mixer"]], "x": row["position"], "y": row[field] / unit}
            for row in rows
            if field in row
        ]

    x, looks = "tokens so far", LOOKS_BY_NAME
    time, held = points("p50", 1e-3), points("state_bytes", 2**20)
    return Chart(
        [
            lines("Time per token", time, x=x, y="ms", log="x", looks=looks),
            lines("Size of the state", held, x=x, y="MiB", log="xy", looks=looks),
        ]
    )


def _row(name: str, what: str, **fields: object) -> Row:
    return find_row(result(name).rows, what=what, **fields)


def _pair(name: str, what: str, **fields: object) -> dict[str, Row]:
    return {mixer: _row(name, what, mixer=mixer, **fields) for mixer in NAMES}


def _both(form: str, pair: dict[str, Row]) -> tuple[str, str]:
    return form.format(**pair["ea-6"]), f"{NAMES['sa']}: " + form.format(**pair["sa"])


def _recall(mixer: str) -> float:
    runs = [row for row in result("recall").rows if row.get("mixer") == mixer]
    return float(max(runs, key=lambda row: row["validation"])["accuracy"]["32"])


def _accuracy(mixer: str) -> float:
    rows = result("table3").rows
    return fmean(r["accuracy"] for r in rows if r["mixer"] == mixer and r["protocol"] == "clean")


def _error(data: str, model: str) -> float:
    key = dict(data=data, model=model, split="chronological", horizon=12)
    rows = result("table4").rows
    return fmean(r["mae"] for r in rows if all(r.get(n) == value for n, value in key.items()))
