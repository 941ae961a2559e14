"""RESULTS.md: every table and figure with its verdicts, generated from the rows."""

from pathlib import Path

from paper.harness import experiment
from paper.harness.experiment import PAPER, RESULTS, Result
from paper.harness.table import verdict_table

HEAD = """# Results

Generated from the rows in [results/](results) by `python -m paper results`; do not edit. Each
section names the command that measures it. The tree and the recipe for a new experiment are in
[CONTRIBUTING.md](../CONTRIBUTING.md).
"""


def markdown() -> str:
    """Return RESULTS.md as text."""
    found = [each for name in experiment.names() if (each := experiment.result(name)).rows]
    verdicts = [verdict for each in found for verdict in each.verdicts]
    met = sum(verdict.met for verdict in verdicts)
    links = [f"- [{each.module.TITLE}](#{_anchor(each.module.TITLE)})" for each in found]
    head = [HEAD, f"{met} of {len(verdicts)} targets are met.", "\n".join(links)]
    return "\n\n".join([*head, *map(_section, found)]) + "\n"


def write() -> list[Path]:
    """Write RESULTS.md and the pictures that it shows; return the files."""
    page = PAPER / "RESULTS.md"
    page.write_text(markdown(), encoding="utf-8")
    files = [page]
    for name in experiment.names():
        chart = experiment.result(name).chart
        if chart is not None:
            files.append(chart.save(RESULTS / f"{name}.svg"))
    return files


def _section(found: Result) -> str:
    parts = [f"## {found.module.TITLE}", found.about, f"`python -m paper run {found.name}`"]
    if found.claims:
        parts.append("The paper says:\n\n" + "\n".join(f"- {claim}" for claim in found.claims))
    if found.chart is not None:
        parts.append(f"![{found.module.TITLE}](results/{found.name}.svg)")
    parts += [table.markdown() for table in found.tables]
    if found.verdicts:
        parts.append(verdict_table(found.verdicts).markdown())
    if found.losses:
        parts.append("Where we lose:\n\n" + "\n".join(f"- {line}" for line in found.losses))
    return "\n\n".join([*parts, found.source])


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
