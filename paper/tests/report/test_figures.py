"""Pictures are made from the rows in a file, from nothing else, and always the same way."""

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from drawing_helpers import check_texts

from eattn import cli
from paper.report import fig1, fig3, plots
from paper.reproduce import fig1 as fig1_rows
from paper.reproduce import fig3 as fig3_rows

FIGURES = {"fig1": fig1, "fig3": fig3}
FIGURE = pytest.mark.parametrize("name", FIGURES)
SUFFIXES = (".png", ".svg")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """What the commands write."""
    out = tmp_path_factory.mktemp("made")
    for name in FIGURES:
        assert cli.main(["reproduce", name, "--out", str(out)]) == 0
    return out


@pytest.fixture
def copy(made, tmp_path) -> Path:
    """The rows alone, to be drawn again."""
    for name in FIGURES:
        shutil.copy(made / f"{name}.jsonl", tmp_path)
    return tmp_path


def change(path: Path, what: str, **fields: object) -> None:
    """Give all rows of one kind other values."""
    rows = plots.read_rows(path)
    rows = [row | (fields if row["what"] == what else {}) for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@FIGURE
def test_the_same_rows_give_the_same_bytes(made, copy, name):
    written = FIGURES[name].redraw(copy / f"{name}.jsonl")
    assert written == [copy / f"{name}{suffix}" for suffix in SUFFIXES]
    for path in written:
        assert path.read_bytes() == (made / path.name).read_bytes()


@FIGURE
def test_another_process_draws_the_same_bytes_without_torch(made, copy, name):
    """Hashes differ from process to process, unless something holds them."""
    code = (
        f"import sys, pathlib; from paper.report import {name};"
        f"{name}.redraw(pathlib.Path({str(copy / name)!r} + '.jsonl'));"
        "sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for suffix in SUFFIXES:
        assert (copy / (name + suffix)).read_bytes() == (made / (name + suffix)).read_bytes()


@pytest.mark.parametrize(
    ("name", "what", "fields", "shown"),
    [
        ("fig3", "polynomial", {"negative_share": 0.123}, "12 %"),
        ("fig3", "range of 2qk", {"sigma": 7.5}, "σ = 7.5"),
        ("fig1", "weights", {"misplaced": 0.55}, "(d) EA-6 misplaces 55 %"),
        ("fig1", "entropy", {"entropy": 0.4321}, "0.43"),
    ],
)
def test_the_picture_changes_with_the_rows(made, copy, name, what, fields, shown):
    change(copy / f"{name}.jsonl", what, **fields)
    png, svg = FIGURES[name].redraw(copy / f"{name}.jsonl")
    assert png.read_bytes() != (made / png.name).read_bytes()
    assert shown in texts(svg)
    assert shown not in texts(made / svg.name)


def texts(svg: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(svg).iter(f"{SVG}text")]


@FIGURE
def test_text_in_the_vector_picture_is_text(made, name):
    found = texts(made / f"{name}.svg")
    assert any(text.startswith("(a)") for text in found)
    assert len(found) > 30


DRAWN = {
    "fig1": (fig1, lambda: fig1_rows.measure(1.0, 0)),
    "fig1, all else": (fig1, lambda: fig1_rows.measure(0.3, 5)),
    "fig3": (fig3, lambda: fig3_rows.measure((2, 6))),
    "fig3, one order": (fig3, lambda: fig3_rows.measure((4,))),
    "fig3, many orders": (fig3, lambda: fig3_rows.measure((2, 4, 6, 12, 16))),
}


@pytest.mark.parametrize(("figure", "rows"), DRAWN.values(), ids=DRAWN)
def test_every_text_is_large_enough_inside_and_clear_of_the_others(figure, rows, monkeypatch):
    with plots.style():
        assert len(check_texts(figure.draw(list(rows())), monkeypatch)) > 30


def test_the_style_of_the_user_neither_counts_nor_is_changed(made, copy):
    import matplotlib

    before = matplotlib.rcParams["font.size"]
    with matplotlib.rc_context({"font.size": 3, "lines.linewidth": 9}):
        fig3.redraw(copy / "fig3.jsonl")
        assert matplotlib.rcParams["font.size"] == 3
    assert matplotlib.rcParams["font.size"] == before
    assert (copy / "fig3.png").read_bytes() == (made / "fig3.png").read_bytes()


@FIGURE
def test_without_matplotlib_the_error_names_the_extra_before_any_work(
    name, monkeypatch, tmp_path, capsys
):
    for module in [key for key in sys.modules if key.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out"
    assert cli.main(["reproduce", name, "--out", str(out)]) == 1
    assert capsys.readouterr().err == (
        'eattn: drawing needs matplotlib, which is not here: pip install "eattn[report]"\n'
    )
    assert not out.exists()


def test_orders_of_the_paper_keep_their_colours_and_all_are_told_apart():
    shades = plots.colours([2, 4, 6, 12, 16])
    assert len(set(shades.values())) == 5
    assert (shades[2], shades[6]) == (plots.VERMILLION, plots.BLUE)
    assert len(set(plots.colours([4, 8, 10, 12, 16]).values())) == 5
    assert plots.colours([6])[6] == plots.BLUE


@pytest.mark.parametrize(
    ("share", "text"),
    [(6.389, "639 %"), (0.0932, "9.3 %"), (272.0, "27,200 %"), (2.46e-9, "2.5e-07 %"), (0, "0 %")],
)
def test_percentages_are_short(share, text):
    assert plots.percent(share) == text
