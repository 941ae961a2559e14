"""The demo, small: stopped by Ctrl-C as a terminal sends it, then gone on with to its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import small_demo_helpers as small_demo
from rich.console import Console
from torch.testing import assert_close

from eattn import ea_series
from paper.bench.candidates import inputs
from paper.demo import forms, run
from paper.report.html.section import read

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a Ctrl-C is a signal on POSIX systems")
PARTS = ("table3", "op", "block", "fig5")


class Ended(NamedTuple):
    """One call of the program."""

    code: int
    out: str
    err: str
    rows: list[dict[str, Any]]  # of the training, when it ended


class Demo(NamedTuple):
    folder: Path
    first: Ended  # stopped
    second: Ended


def call(folder: Path, *, stop: bool) -> Ended:
    """The small demo in a process of its own; stopped as soon as a training has come to its end."""
    path = folder / "table3.jsonl"
    command = [sys.executable, small_demo.__file__, "--out", str(folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    while stop and process.poll() is None and not trained(path):
        time.sleep(0.02)
    if stop:
        os.killpg(process.pid, signal.SIGINT)  # to all of its processes, as a terminal does
    out, err = process.communicate()
    return Ended(process.returncode, out, err, trained(path))


def trained(path: Path) -> list[dict[str, Any]]:
    return [row for row in read(path) if row["what"] == "run"] if path.exists() else []


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    first = call(folder, stop=True)
    yield Demo(folder, first, call(folder, stop=False))


def test_ctrl_c_stops_it_with_one_line(demo):
    assert demo.first.code == 130
    assert demo.first.err == "eattn: interrupted\n"
    assert demo.first.rows
    assert "report.html" not in demo.first.out


def test_a_second_run_continues(demo):
    assert demo.second.code == 0, demo.second.err
    kept = len(demo.first.rows)
    assert demo.second.rows[:kept] == demo.first.rows
    mixers = [row["mixer"] for row in demo.second.rows]
    assert sorted(mixers) == ["ea-2", "ea-6", "sa"]


def test_it_prints_the_table_with_the_papers_values_and_says_where_the_report_is(demo):
    out = demo.second.out
    assert "largest difference" in out
    assert "paper's ea-6" in out and "0.973" in out
    assert "forward+backward: SDPA" in out
    assert "time per token" in out
    page = demo.folder / "report.html"
    assert page.resolve().as_uri() in out.replace("\n", "")
    assert "What to try next" in out


def test_the_report_holds_every_part(demo):
    text = (demo.folder / "report.html").read_text(encoding="utf-8")
    for name in (*PARTS, "fig1", "fig3"):
        assert f'data-figure="{name}"' in text
        assert f"{name}.jsonl" in text
    assert "eattn reproduce table4</code> makes it" in text


def test_what_is_finished_is_kept_and_another_plan_is_measured_anew(demo):
    rows = {name: (demo.folder / f"{name}.jsonl").read_bytes() for name in PARTS}
    console = Console(quiet=True)
    run(console, demo.folder, plan=small_demo.plan())
    assert rows == {name: (demo.folder / f"{name}.jsonl").read_bytes() for name in PARTS}
    run(console, demo.folder, plan=small_demo.plan(order=4))
    again = {name: (demo.folder / f"{name}.jsonl").read_bytes() for name in PARTS}
    assert [name for name in PARTS if again[name] != rows[name]] == ["op"]
    assert again["op"].startswith(rows["op"])


def test_the_forms_it_compares_agree():
    q, k, v = inputs((2, 130, 8))
    expected = ea_series(q, k, v, order=6, causal=True)
    assert_close(forms.chunked(q, k, v), expected)
    assert_close(forms.stepped(q, k, v), expected)
