"""Notebooks: every cell runs, and the stored outputs are those of a whole run."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
# Assignments of each notebook that are replaced to make it short.
SMALL: dict[str, dict[str, object]] = {
    "classify": {"epochs": 1},
    "forecast": {"weeks": 2, "days": 4, "steps": 2},
    "language-model": {
        "steps": 2,
        "config": "LMConfig(hidden=16, layers=3, steps=2, evaluations=1, validation_tokens=256)",
        "tokens": 300,
        "length": 20,
    },
    "own-model": {"steps": 2, "lengths": [16, 32]},
}
NEEDS = {"classify": "aeon", "forecast": "pandas", "language-model": "transformers"}
needs_plots = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason='needs pip install "eattn[report]"'
)


def cells(name: str) -> list[dict]:
    """Return the code cells of a notebook."""
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(outputs: list[dict]) -> list[object]:
    """Return the kinds of outputs of a cell, such as text or a plot."""
    return [sorted(output.get("data", [output["output_type"]])) for output in outputs]


def test_every_notebook_is_tested():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SMALL)


@needs_plots
@pytest.mark.parametrize("name", SMALL)
def test_cells_run_with_small_settings(name, tmp_path, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    import matplotlib
    from matplotlib import pyplot

    source = "\n".join("".join(cell["source"]) for cell in cells(name))
    for setting, value in SMALL[name].items():
        source, count = re.subn(rf"^{setting} = .+$", f"{setting} = {value}", source, flags=re.M)
        assert count == 1, setting
    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context({"backend": "agg"}):
        exec(compile(source, name, "exec"), {})
    assert pyplot.get_fignums()
    pyplot.close("all")


@pytest.mark.parametrize("name", SMALL)
def test_stored_outputs_are_those_of_one_run(name):
    found = cells(name)
    assert [cell["execution_count"] for cell in found] == list(range(1, len(found) + 1))
    outputs = [output for cell in found for output in cell["outputs"]]
    assert "image/svg+xml" in {kind for output in outputs for kind in output.get("data", ())}
    assert not any(o["output_type"] == "error" or o.get("name") == "stderr" for o in outputs)


@pytest.mark.full
@needs_plots
@pytest.mark.skipif(find_spec("nbclient") is None, reason='needs pip install "eattn[docs]"')
@pytest.mark.parametrize("name", SMALL)
def test_run_in_jupyter_gives_outputs_like_the_stored_ones(name, tmp_path, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    import nbformat

    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    from run_notebooks import run

    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    run(notebook, tmp_path)
    fresh = [kinds(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    assert fresh == [kinds(cell["outputs"]) for cell in cells(name)]
