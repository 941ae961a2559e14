"""Report page: one HTML file with every table and chart; each chart as SVG and PNG, too."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from paper.harness import experiment
from paper.harness.chart import NAMES, Chart
from paper.harness.experiment import Result

HERE = Path(__file__).parent
TITLE = "Element-wise attention, measured"


def write(results: Path, out: Path, *, title: str = TITLE) -> Path:
    """Write out/report.html and the pictures; return the page.

    Parameters
    ----------
    results : Path
        Folder of the run logs.
    out : Path
        Folder to write to.
    title : str
        Heading of the page.
    """
    found = [experiment.result(name, results) for name in experiment.names()]
    if not any(each.rows for each in found):
        raise ValueError(f"{results} has no rows to report; `python -m paper run` measures them")
    out.mkdir(parents=True, exist_ok=True)
    charts: dict[str, Chart] = {}
    for each in found:
        chart = each.module.draw(each.rows) if each.rows else None
        if chart is not None:
            charts[each.name] = chart
            for suffix in ("svg", "png"):
                chart.save(out / f"{each.name}.{suffix}")
    page = out / "report.html"
    page.write_text(_render(found, charts, title), encoding="utf-8")
    return page


def _render(found: Sequence[Result], charts: dict[str, Chart], title: str) -> str:
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
        charts=charts,
        specs=lambda chart: zip(chart.panels, map(Markup, chart.specs()), strict=True),
        colour=lambda look: f"var(--{NAMES[look.colour]})",
        met=sum(verdict.met for verdict in verdicts),
        judged=len(verdicts),
        highlights=[(r, v) for r in found for v in r.verdicts if v.target.highlight],
        losing=[r for r in found if r.losses or any(not v.met for v in r.verdicts)],
        conditions=list(_conditions(found)),
    )


def _inline(text: str) -> Markup:
    """Return escaped text with `code` marked."""
    plain = str(escape(text)).replace("\\*", "*").replace("\\|", "|")
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", plain))


def _conditions(found: Sequence[Result]) -> Iterator[list[str]]:
    """Yield where the rows of each experiment come from."""

    def values(each: Result, field: str) -> str:
        known = {str(row[field])[:12] for row in each.rows if row.get(field) is not None}
        return ", ".join(sorted(known)) or "–"

    for each in found:
        if each.rows:
            dates = sorted(str(row["date"])[:10] for row in each.rows)
            yield [
                each.name + "-quick" * each.quick,
                " – ".join(dict.fromkeys((dates[0], dates[-1]))),
                values(each, "commit") + " with changes" * any(r.get("dirty") for r in each.rows),
                ", ".join(sorted({str(row["hardware"]) for row in each.rows})),
                f"torch {values(each, 'torch')}, Python {values(each, 'python')}",
                values(each, "seed"),
                f"{len(each.rows):,}",
            ]
