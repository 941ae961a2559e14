"""Under which conditions the rows were measured: source, machine, versions, seeds, dates."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from paper.report.html.section import Found
from paper.report.runs import Row


@dataclass(frozen=True)
class Condition:
    """Of one file, in words; `config` is the plan of the run, if it had one."""

    file: str
    command: str
    date: str
    commit: str
    hardware: str
    versions: str
    seeds: str
    rows: int
    config: str

    @property
    def cells(self) -> list[str]:
        start = [self.file, self.date, self.commit, self.hardware]
        return [*start, self.versions, self.seeds, f"{self.rows:,}"]


HEAD = ["rows", "measured", "source", "machine", "versions", "seeds", "number of rows"]


def conditions(found: Sequence[Found]) -> list[Condition]:
    """Of every file that was used."""
    return [_condition(each) for each in found if each.rows]


def _condition(found: Found) -> Condition:
    last = found.rows[-1]
    dirty = " with changes" if last.get("dirty") else ""
    config = last.get("config")
    return Condition(
        file=found.path.name if found.path else "",
        command=found.section.command,
        date=f"{last['date'][:10]} {last['date'][11:16]} UTC",
        commit=f"{(last.get('commit') or 'no commit')[:12]}{dirty}",
        hardware=last.get("hardware", ""),
        versions=", ".join(f"{n} {last[n]}" for n in ("eattn", "torch", "python") if n in last),
        seeds=_seeds(found.rows),
        rows=len(found.rows),
        config="" if not config else json.dumps(config, indent=1, ensure_ascii=False),
    )


def _seeds(rows: Sequence[Row]) -> str:
    seeds = sorted({row["seed"] for row in rows if row.get("seed") is not None})
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds)) or "0"  # inputs of benchmarks are drawn with seed 0
