"""Run notebooks in Jupyter and store their outputs: python docs/site/run_notebooks.py FILE ...

Outputs keep plots as SVG only, and nothing that differs from run to run without being visible.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SVG = "image/svg+xml"
QUIET = {"PYTHONWARNINGS": "ignore:IProgress"}  # tqdm misses the widgets of JupyterLab
PLOTS = "--InlineBackend.figure_formats=svg"


def run(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run all cells in `folder`; raise if one fails."""
    client = NotebookClient(
        notebook,
        timeout=None,
        extra_arguments=[PLOTS],
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | QUIET)
    notebook.metadata["language_info"] = {"name": "python"}  # without the version of Python
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if SVG in output.get("data", ()):
            output["data"] = {SVG: output["data"][SVG]}


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        print("running", path, flush=True)
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            run(notebook, Path(folder))
        nbformat.write(notebook, path)
