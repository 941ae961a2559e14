"""results/*.jsonl -> report.html, and every figure as PNG and SVG beside it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined  # torch brings it
from markupsafe import Markup

from paper.report import plots
from paper.report.html import svg
from paper.report.html.conditions import HEAD, conditions
from paper.report.html.figures import Drawn, drawn
from paper.report.html.judged import Judged, highlights, judged, losses
from paper.report.html.markup import Part, Table, inline, parts
from paper.report.html.section import Found, Section, find
from paper.report.html.sections import SECTIONS
from paper.report.promises import source

NAME = "report.html"
TITLE = "Element-wise attention, measured"

Tell = Callable[[str], None]  # what is being done


@dataclass(frozen=True)
class Filled:
    """A section with all that its rows gave."""

    found: Found
    promises: list[Judged]
    parts: list[Part]
    figure: Drawn | None

    @property
    def section(self) -> Section:
        return self.found.section


def write(
    results: Path,
    out: Path,
    *,
    force: bool = False,
    title: str = TITLE,
    sections: Sequence[Section] = SECTIONS,
    tell: Tell = lambda what: None,
) -> list[Path]:
    """Write out/report.html and the figures; -> the files written, the page first."""
    plots.need_matplotlib()
    if not results.is_dir():
        raise ValueError(f"--results must be a folder of .jsonl files, there is none at {results}")
    page = out / NAME
    if page.exists() and not force:
        raise ValueError(f"{page} exists already: --force overwrites it")
    found = [find(section, results) for section in sections]
    if not any(each.rows for each in found):
        raise ValueError(
            f"{results} has no rows to report on; `{sections[0].command}` makes the first"
        )
    out.mkdir(parents=True, exist_ok=True)
    filled = [_fill(each, out, tell) for each in found]
    tell(NAME)
    part = out / f".{NAME}.{os.getpid()}"
    try:
        part.write_text(_render(filled, title), encoding="utf-8")
        os.replace(part, page)
    finally:
        part.unlink(missing_ok=True)
    figures = [each.figure.files for each in filled if each.figure is not None]
    return [page, *(file for files in figures for file in files)]


def _fill(found: Found, out: Path, tell: Tell) -> Filled:
    section, rows = found.section, found.rows
    tell(section.title)
    if not rows:
        return Filled(found, [], [], None)
    text = section.markdown(rows) if section.markdown else ""
    figure = drawn(section.key, section.draw, rows, out) if section.draw else None
    return Filled(found, list(judged(rows)), _own(parts(text), rows), figure)


def _own(every: Any, rows: Sequence[dict[str, Any]]) -> list[Part]:
    """What the page does not show in its own way: promises have a list, conditions a section."""
    shown = source(rows[-1])
    return [
        part
        for part in every
        if not (isinstance(part, Table) and part.head[0] == "ratio")
        and getattr(part, "text", "") != shown
    ]


def _render(filled: Sequence[Filled], title: str) -> str:
    def static(name: str) -> str:
        return files(__package__).joinpath(name).read_text(encoding="utf-8")

    found = [each.found for each in filled]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["inline"] = inline
    environment.filters["kind"] = lambda part: type(part).__name__
    every = [promise for each in filled for promise in each.promises]
    return environment.from_string(static("page.html")).render(
        title=title,
        style=Markup(static("page.css")),
        script=Markup(static("page.js")),
        palette=svg.PALETTE,
        sections=filled,
        highlights=list(highlights(found)),
        losses=losses(found),
        promised=len(every),
        missed=sum(promise.verdict == "miss" for promise in every),
        conditions=conditions(found),
        head=HEAD,
    )
