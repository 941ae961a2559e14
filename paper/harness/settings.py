"""Settings of training runs that rows store only where they differ from a default.

Rows that were measured before a setting could vary do not store it. In a key such a setting is None
while it has its default value, so that these rows are found, and a new value makes a new row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from paper.harness.runlog import Key, Row


def defaults(plan: Any, *, after: str) -> dict[str, Any]:
    """Return the fields of a plan class after one, except `jobs`, with their defaults.

    Changing one of these defaults gives stored rows another meaning.
    """
    names = [field.name for field in fields(plan)]
    return {n: getattr(plan, n) for n in names[names.index(after) + 1 :] if n != "jobs"}


def key_of(plan: object, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a plan that `defaults` names, with None for those at their default."""
    values = {name: getattr(plan, name) for name in defaults}
    return {name: None if value == defaults[name] else value for name, value in values.items()}


def settings_of(row: Key, defaults: Mapping[str, Any]) -> Row:
    """Return the fields of a row or a key, with the default of each setting that is missing."""
    return dict(defaults) | {name: value for name, value in row.items() if value is not None}


def by_variant(
    rows: Iterable[Row], name: Callable[[Row], str], defaults: Mapping[str, Any]
) -> dict[str, list[Row]]:
    """Group rows by a name; settings that vary between the rows are added to it.

    >>> rows = [{"mixer": "sa"}, {"mixer": "sa", "steps": 900}]
    >>> list(by_variant(rows, lambda row: row["mixer"], {"steps": 300, "lr": 1e-3}))
    ['sa', 'sa, steps 900']
    """
    rows = list(rows)
    varying = [
        field
        for field, default in defaults.items()
        if len({str(row.get(field, default)) for row in rows}) > 1
    ]
    found: dict[str, list[Row]] = {}
    for row in rows:
        changed = [f", {field} {_text(row[field])}" for field in varying if field in row]
        found.setdefault(name(row) + "".join(changed), []).append(row)
    return found


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
