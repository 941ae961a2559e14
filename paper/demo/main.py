"""The demo from its first line to its last."""

from pathlib import Path

from rich.console import Console

from eattn.ops import backends
from paper.demo import forms
from paper.demo.stages import Plan, carry_out, stages
from paper.report import html, plots
from paper.reproduce import fig1, fig3, publish

NEXT = (
    ("eattn classify fit TRAIN.ts --out model/", "the same on your own series"),
    ("eattn forecast fit data.csv --horizon 12 --out model/", "forecast your own"),
    ("eattn reproduce table3", "all four sets of the paper, five seeds"),
    ("eattn report", "this report from the published rows in results/"),
)
TITLE = "Element-wise attention, a demo"


def run(console: Console, out: Path, *, fresh: bool = False, plan: Plan | None = None) -> Path:
    """Train, time, report; -> the page. What an earlier call measured is kept, unless `fresh`."""
    plots.need_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    parts = list(stages(plan or Plan()))
    if fresh:
        for stage in parts:
            (out / f"{stage.name}.jsonl").unlink(missing_ok=True)
    console.print("About five minutes on two cores. Ctrl-C stops it; the same command continues.")
    reason = backends()["native"]
    if reason is not None:
        console.print(f"The fused kernel does not run here: {reason}", style="yellow")
    total = len(parts) + 2
    _title(console, 1, total, "the forms of the operator agree")
    with console.status("the forms of the operator"):
        console.print(forms.table())
    for number, stage in enumerate(parts, 2):
        _title(console, number, total, stage.title)
        stage.show(carry_out(stage, console, out), console)
    _title(console, total, total, "the report")
    page = report(console, out)
    console.print(f"\n{page}", style="bold", soft_wrap=True, highlight=False)
    console.print(f"Open it in a browser: {page.resolve().as_uri()}\n", soft_wrap=True)
    console.print("What to try next:")
    width = max(len(command) for command, _ in NEXT)
    for command, what in NEXT:
        console.print(
            f"  {command:<{width}}  {what}", highlight=False, markup=False, soft_wrap=True
        )
    return page


def report(console: Console, out: Path) -> Path:
    """The page of what was measured, with the two figures that take no time."""
    with console.status("Figures 1 and 3") as status:
        publish("fig1", fig1.measure(1.0, 0), out)
        publish("fig3", fig3.measure((2, 6)), out)
        page, *_ = html.write(out, out, force=True, title=TITLE, tell=status.update)
    return page


def _title(console: Console, number: int, total: int, words: str) -> None:
    console.print(f"\n[bold]{number}/{total}  {words}[/]", highlight=False)
