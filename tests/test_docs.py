"""Documents: links resolve, equations are found, and examples run."""

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PAGES = ("*.md", "docs/*.md", "docs/notebooks/*.ipynb", "paper/*.md")
DOCUMENTS = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
LINK = re.compile(r"(?:\[[^\]]*\]\(|<img src=\")([^)\s\"]+)")
PAPER = (ROOT / "PAPER.md").read_text(encoding="utf-8")


def text_of(document: Path) -> str:
    """Return a document; of a notebook, the cells with text."""
    text = document.read_text(encoding="utf-8")
    if document.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def links(text: str) -> list[str]:
    """Return link targets inside the repository."""
    return [target for target in LINK.findall(text) if "://" not in target]


def anchors(path: Path) -> set[str]:
    """Return the headings of a document as link fragments."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_resolves(document):
    for target in links(text_of(document)):
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


def rows() -> dict[str, str]:
    """Return the rows of PAPER.md's tables by their first cell: `Eq. 12`, `Table 3`, `Figure 4`."""
    found = re.findall(r"^\| ((?:Eq\.|Table|Figure) \d+) \|(.*)$", PAPER, re.MULTILINE)
    assert len(dict(found)) == len(found), "a row occurs twice"
    return dict(found)


def test_every_equation_table_and_figure_has_a_row():
    expected = [f"Eq. {n}" for n in range(1, 21)]
    expected += [f"Table {n}" for n in range(1, 5)] + [f"Figure {n}" for n in range(1, 6)]
    assert set(rows()) == set(expected)


@pytest.mark.parametrize("name", rows())
def test_linked_sources_and_tests_name_the_equation(name):
    """A row without sources is marked as planned."""
    _, code, test = rows()[name].rstrip("| ").split(" | ")
    sources = links(code)
    assert bool(sources) == bool(links(test)) == ("planned" not in code)
    if sources and name.startswith("Eq."):
        for source in sources:
            assert mentions(source, name), f"{source} does not mention {name}"
        assert any(mentions(target, name) for target in links(test)), f"no test mentions {name}"


def mentions(target: str, name: str) -> bool:
    text = (ROOT / target).read_text(encoding="utf-8")
    return re.search(re.escape(name) + r"\b", text) is not None


def test_equations_of_the_operator_are_implemented():
    assert all("planned" not in rows()[f"Eq. {n}"] for n in range(1, 17))


def test_equation_tags_are_singular():
    for path in [*SRC.rglob("*.py"), *SRC.rglob("*.h"), *SRC.rglob("*.cpp")]:
        assert "Eqs." not in path.read_text(encoding="utf-8"), path


def examples(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text_of(document), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", list(filter(examples, DOCUMENTS)), ids=lambda path: path.name)
def test_examples_of_documents_run(document):
    names: dict[str, object] = {}
    for example in examples(document):  # examples may use names of earlier examples
        exec(compile(example, document.name, "exec"), names)


def documented() -> list[str]:
    files = (path for path in SRC.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
    return sorted(".".join(path.relative_to(SRC).with_suffix("").parts) for path in files)


@pytest.mark.parametrize("module", documented())
def test_examples_of_docstrings_run(module):
    if module.startswith(("eattn.hf", "eattn.lm")):
        pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')
    result = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")))
    assert result.attempted > 0
    assert result.failed == 0
