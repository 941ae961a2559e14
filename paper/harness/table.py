"""Tables of text, shown on the console, in RESULTS.md and on the report page."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from paper.harness.runlog import Row
from paper.harness.target import Verdict

Cells = Sequence[str]


@dataclass(frozen=True)
class Table:
    """A title, a head, lines of as many cells, and notes below. Text may contain `code`."""

    title: str
    head: Cells
    lines: Sequence[Cells]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.head, *self.lines)]
        body = [lines[0], "|" + "---|" * len(self.head), *lines[1:]]
        parts = [f"**{self.title}**", "\n".join(body)] if self.lines else [f"**{self.title}**"]
        return "\n\n".join([*parts, *self.notes])

    def rich(self) -> RichTable:
        """Return the table for a terminal."""
        out = RichTable(title=_bare(self.title), box=SIMPLE_HEAD, title_justify="left")
        short = max((len(cells[0]) for cells in self.lines), default=0) <= 28
        out.add_column(_bare(self.head[0]), no_wrap=short)
        for name in self.head[1:]:
            out.add_column(_bare(name), justify="right")
        for cells in self.lines:
            out.add_row(*map(_bare, cells))
        if self.notes:
            out.caption, out.caption_justify = _bare("\n".join(self.notes)), "left"
        return out


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    """Return targets with the numbers measured."""
    verdicts = list(verdicts)
    lines = [[v.target.name, v.text, v.bound, v.words] for v in verdicts]
    return Table("Targets", ["number", "measured", "required", "verdict"], lines)


def grid(
    title: str,
    rows: Iterable[Row],
    axis: str,
    cell: Callable[[Row], str],
    *,
    name: Callable[[Row], str] = lambda row: str(row["mixer"]),
    notes: Iterable[str] = (),
) -> Table:
    """Return a table with a column per value of a field and a line per name of a row.

    Cells without a row are empty.
    """
    found = {(name(row), row[axis]): row for row in rows}
    columns = sorted({column for _, column in found})
    body = [
        [line, *(cell(found[line, x]) if (line, x) in found else "" for x in columns)]
        for line in dict.fromkeys(line for line, _ in found)
    ]
    return Table(title, [axis, *map(tokens, columns)], body, tuple(notes))


def seconds(value: float) -> str:
    """Format seconds with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def tokens(count: int) -> str:
    """Format a number of tokens; 16384 becomes 16k."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def size(value: float) -> str:
    """Format bytes with three digits and a unit."""
    gib = 2**30
    return f"{value / gib:.3g} GiB" if value >= gib else f"{value / 2**20:.3g} MiB"


def number(value: float) -> str:
    """Format a number with three digits, or all before the point; two below 1."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{2 if value < 1 else 3}g}"


def percent(share: float) -> str:
    """Format a share in percent with at least two digits: `639 %`, `9.3 %`."""
    value = 100 * share
    return f"{value:,.0f} %" if value >= 10 else f"{value:.2g} %"


def _bare(text: str) -> str:
    return text.replace("`", "").replace("[", "\\[")
