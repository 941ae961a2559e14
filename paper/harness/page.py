"""Report page: one HTML file with every table and chart; each chart as SVG and PNG, too."""

import re
from collections.abc import Sequence
from pathlib import Path

import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from paper.harness import experiment
from paper.harness.chart import PROPERTIES
from paper.harness.experiment import Result
from paper.harness.table import Table, verdict_table

HERE = Path(__file__).parent
TITLE = "Element-wise attention, measured"


def write(results: Path, out: Path, *, title: str = TITLE) -> Path:
    """Write out/report.html and the pictures, from the run logs in `results`; return the page."""
    found = [experiment.result(name, results) for name in experiment.names()]
    if not any(each.rows for each in found):
        raise ValueError(f"{results} has no rows to report; `python -m paper run` measures them")
    out.mkdir(parents=True, exist_ok=True)
    for each in found:
        if each.chart is not None:
            each.chart.save(out / f"{each.name}.svg", png=True)
    page = out / "report.html"
    page.write_text(_render(found, title), encoding="utf-8")
    return page


def _render(found: Sequence[Result], title: str) -> str:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["inline"] = _inline
    template = environment.from_string((HERE / "page.html").read_text(encoding="utf-8"))
    verdicts = [verdict for each in found for verdict in each.verdicts]
    script = vl_convert.javascript_bundle((HERE / "page.js").read_text(encoding="utf-8"))
    return template.render(
        title=title,
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script.replace("</script", "<\\/script")),
        results=found,
        specs=lambda chart: zip(chart.panels, map(Markup, chart.specs()), strict=True),
        colour=lambda look: PROPERTIES[look.colour],
        met=sum(verdict.met for verdict in verdicts),
        judged=len(verdicts),
        highlights=[(r, v) for r in found for v in r.verdicts if v.target.highlight],
        losing=[r for r in found if r.losses or any(not v.met for v in r.verdicts)],
        verdict_table=verdict_table,
        conditions=_conditions(found),
    )


def _inline(text: str) -> Markup:
    """Return escaped text with `code` marked."""
    plain = str(escape(text)).replace("\\*", "*").replace("\\|", "|")
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", plain))


def _conditions(found: Sequence[Result]) -> Table:
    """Return where the rows of each experiment come from."""
    head = ["experiment", "rows", "measured", "commit", "machine", "torch", "Python", "seeds"]
    body = []
    for each in found:
        cells = [f"{each.name}{'-quick' * each.quick}", f"{len(each.rows):,}"]
        for field, width in (("date", 10), ("commit", 12), ("hardware", None)):
            cells.append(", ".join(sorted({str(row[field])[:width] for row in each.rows})))
        for field in ("torch", "python", "seed"):
            cells.append(", ".join(sorted({str(row[field]) for row in each.rows if field in row})))
        body.append(cells)
    return Table("Origin of the rows", head, body)
