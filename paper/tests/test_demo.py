"""The demo, small: interrupted by Ctrl-C as a terminal sends it, then continued to its end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from torch.testing import assert_close

from eattn import ea_series
from paper import demo
from paper.harness import experiment
from paper.harness.measure import inputs
from paper.harness.runlog import read_rows

STAGES = (
    ("table3", "train", {"sets": "JapaneseVowels", "epochs": "0.03", "jobs": "1"}),
    (
        "op",
        "time",
        {
            "shape": "1,64,64",
            "rounds": "2",
            "lengths": "32,64",
            "orders": "2,6",
            "series": "1,1024,4",
            "calls": "2",
            "peaks": "",
        },
    ),
)
PROGRAM = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may ignore it
from eattn.cli import run_app
from paper import demo
from paper.__main__ import app
if __name__ == "__main__":
    demo.run.__kwdefaults__["stages"] = {STAGES!r}
    sys.exit(run_app(app, "python -m paper", ["demo", "--out", sys.argv[1]]))
"""


def start(folder: Path) -> subprocess.Popen:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(folder)]
    paths = os.pathsep.join([str(Path(demo.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": paths},
    )


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is a signal on POSIX systems")
def test_an_interrupted_demo_continues_to_its_report(tmp_path):
    path = tmp_path / "table3-quick.jsonl"
    process = start(tmp_path)
    while process.poll() is None and not read_rows(path):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # to all of its processes, as a terminal does
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "eattn: interrupted\n")
    kept = read_rows(path)
    assert kept and not (tmp_path / "report.html").exists()
    process = start(tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert read_rows(path)[: len(kept)] == kept
    assert sorted(row["mixer"] for row in read_rows(path)) == ["ea-2", "ea-6", "sa"]
    for words in ("largest difference", "paper's ea-6", "0.973", "forward+backward: SDPA"):
        assert words in out
    assert (tmp_path / "report.html").resolve().as_uri() in out.replace("\n", "")
    before = path.read_bytes()
    demo.run(Console(quiet=True), tmp_path, stages=STAGES)
    assert path.read_bytes() == before


def test_stages_change_fields_of_their_plans():
    for name, _, changes in demo.STAGES:
        experiment.change(experiment.load(name).plan(quick=True), changes)


def test_forms_of_the_operator_agree():
    q, k, v = inputs((2, 130, 8))
    expected = ea_series(q, k, v, order=6, causal=True)
    assert_close(demo.chunked(q, k, v), expected)
    assert_close(demo.stepped(q, k, v), expected)
    assert len(demo.forms().lines) == 3
