"""Every experiment has the same shape, and a run measures only missing rows."""

import dataclasses
from types import SimpleNamespace

import pytest
from rich.console import Console

from eattn.cli import run_app
from paper.__main__ import app
from paper.harness import experiment
from paper.harness.runlog import RunLog
from paper.harness.table import Table
from paper.harness.target import Target

QUIET = Console(quiet=True)


@dataclasses.dataclass(frozen=True)
class Plan:
    sizes: tuple[int, ...] = (1, 2)
    rate: float = 0.5
    jobs: int | None = None


def fake(calls: list[int]) -> SimpleNamespace:
    def rows(plan, log):
        for size in plan.sizes:
            work = lambda size=size: calls.append(size) or {"cost": size * plan.rate}  # noqa: E731
            yield from log.measure({"what": "time", "size": size}, work)

    return SimpleNamespace(
        TITLE="Fake",
        TARGETS=[
            Target("total", lambda rows: sum(row["cost"] for row in rows), at_most=2),
            Target("least", lambda rows: min(r["cost"] for r in rows), at_most=0.1, quick=True),
        ],
        plan=lambda quick: Plan((1,)) if quick else Plan(),
        rows=rows,
        tables=lambda rows: [Table("Costs", ["size"], [[str(row["size"])] for row in rows])],
    )


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    calls: list[int] = []
    monkeypatch.setattr(experiment, "load", lambda name: fake(calls))
    return calls


@pytest.mark.parametrize("name", experiment.names())
def test_experiments_have_one_shape(name):
    module = experiment.load(name)
    assert module.TITLE
    targets = getattr(module, "TARGETS", ())
    assert all(isinstance(target, Target) for target in targets)
    assert len({target.name for target in targets}) == len(targets)
    for quick in (False, True):
        plan = module.plan(quick)
        assert dataclasses.is_dataclass(plan)
        with pytest.raises(dataclasses.FrozenInstanceError):
            plan.anything = 1
    assert all(callable(getattr(module, part)) for part in ("rows", "tables"))
    assert experiment.Result(name, module, []).about


# Need data, a sweep or a GPU.
ELSEWHERE = (
    "table3",
    "table4",
    "faithful",
    "classification",
    "forecasting",
    "lm",
    "pretraining",
    "recall",
    "gpu",
)
COMPLETE = [name for name in experiment.names() if name not in ELSEWHERE]


@pytest.mark.parametrize("name", COMPLETE)
def test_published_rows_belong_to_the_full_plan(name, monkeypatch):
    module, log = experiment.load(name), RunLog(None, name)
    log.rows = experiment.result(name).rows
    monkeypatch.setattr(log, "add", None)  # nothing is measured
    found = list(module.rows(module.plan(quick=False), log))
    assert found and all(row in log.rows for row in found)


MIXED = ("table1", "table3", "table4", "faithful", "forecasting", "recall", "lm", "fig4")


@pytest.mark.parametrize("name", MIXED)
def test_unknown_mixers_are_refused(name):
    module = experiment.load(name)
    plan = dataclasses.replace(module.plan(quick=True), mixers=("xx",))
    with pytest.raises(ValueError, match="unknown mixer 'xx'"):
        list(module.rows(plan, RunLog(None, name)))


def test_unknown_experiments_are_named():
    with pytest.raises(ValueError, match=r"no experiment is called 'table9'; there are .*table3"):
        experiment.load("table9")


def test_a_run_measures_only_missing_rows(tmp_path, calls):
    found = experiment.run("fake", QUIET, out=tmp_path)
    assert [row["cost"] for row in found.rows] == [0.5, 1.0]
    experiment.run("fake", QUIET, out=tmp_path, changes={"sizes": "2,3"})
    assert calls == [1, 2, 3]
    experiment.run("fake", QUIET, out=tmp_path, fresh=True)
    assert calls == [1, 2, 3, 1, 2]


def test_quick_runs_have_their_own_file_and_targets(tmp_path, calls):
    found = experiment.run("fake", QUIET, quick=True, out=tmp_path)
    assert (tmp_path / "fake-quick.jsonl").exists()
    assert [verdict.target.name for verdict in found.verdicts] == ["least"]
    assert experiment.result("fake", tmp_path).quick
    experiment.run("fake", QUIET, out=tmp_path)
    assert not experiment.result("fake", tmp_path).quick


def test_results_are_shown_with_verdicts(tmp_path, calls, capsys):
    found = experiment.run("fake", QUIET, out=tmp_path)
    experiment.show(found, Console(width=120))
    out = capsys.readouterr().out
    for words in ("Costs", "total", "1.5", "≤ 2", "met", "missed", found.rows[0]["hardware"]):
        assert words in out


@pytest.mark.parametrize(
    ("field", "text", "value"), [("sizes", "3, 4", (3, 4)), ("rate", "2", 2.0), ("jobs", "2", 2)]
)
def test_changes_are_read_as_the_type_of_the_field(field, text, value):
    assert getattr(experiment.change(Plan(), {field: text}), field) == value


def test_unknown_fields_are_named():
    with pytest.raises(ValueError, match="no field 'size'; it has sizes, rate, jobs"):
        experiment.change(Plan(), {"size": "1"})


def command(*arguments: object) -> int:
    return run_app(app, "python -m paper", [str(argument) for argument in arguments])


def test_strict_runs_fail_on_a_missed_target(tmp_path, calls, capsys):
    assert command("run", "fake", "--out", tmp_path) == 0
    assert command("run", "fake", "--out", tmp_path, "--strict") == 1
    assert capsys.readouterr().err.strip() == "eattn: missed: least"
    assert command("run", "fake", "--out", tmp_path, "--set", "rate") == 1
    assert "--set must be FIELD=VALUE, got 'rate'" in capsys.readouterr().err


def test_list_names_every_experiment(capsys):
    assert command("list") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in experiment.names())
