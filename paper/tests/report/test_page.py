"""The page: all of it from rows, nothing from elsewhere, and what is refused."""

import re
import shutil
import subprocess
import sys
import tomllib
from html import unescape
from pathlib import Path, PurePath

import pytest
import report_rows_helpers as made

from eattn import cli
from paper.report import fig3, html
from paper.report.html.section import Section
from paper.report.html.sections import SECTIONS

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def few(tmp_path) -> Path:
    """A folder with one figure's rows alone."""
    folder = tmp_path / "few"
    folder.mkdir()
    shutil.copy(RESULTS / "fig3.jsonl", folder)
    return folder


def part(page: Path, key: str) -> str:
    """The source of one section."""
    text = page.read_text(encoding="utf-8")
    return text.partition(f'<section id="{key}"')[2].partition("</section>")[0]


def plain(source: str) -> str:
    """Without tags, one blank between words."""
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", source).split()))


# ---- what is on it -------------------------------------------------------------------------------


def test_every_figure_is_written_twice_beside_the_page(report):
    names = {path.name for path in report.parent.iterdir()}
    for section in SECTIONS:
        assert {f"{section.key}.png", f"{section.key}.svg"} <= names
    assert not [name for name in names if name.startswith(".")]


def test_a_report_is_overwritten_only_with_force(few, tmp_path, capsys):
    page = tmp_path / "out" / "report.html"
    args = ["report", "--results", str(few), "--out", str(page.parent)]
    assert cli.main(args) == 0
    assert capsys.readouterr().out == f"wrote {page}, and 2 figures beside it\n"
    assert cli.main(args) == 1
    assert "report.html exists already: --force overwrites it" in capsys.readouterr().err
    assert cli.main([*args, "--force"]) == 0


def test_another_process_makes_the_same_page_without_torch(few, tmp_path):
    page, *_ = html.write(few, tmp_path / "here")
    code = (
        "import sys, pathlib; from paper.report import html;"
        f"html.write(pathlib.Path({str(few)!r}), pathlib.Path({str(tmp_path / 'there')!r}));"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "there" / "report.html").read_bytes() == page.read_bytes()


def test_nothing_is_loaded_from_elsewhere(report):
    text = report.read_text(encoding="utf-8")
    loaded = re.findall(r"""(?:src|href)="([^"#]*)["#]""", text)
    assert all(not re.match(r"(?!data:)\w+:|//", target) for target in loaded if target)
    assert "@import" not in text
    assert "url(http" not in text


def test_every_section_is_there_with_its_place_in_the_contents(report):
    text = report.read_text(encoding="utf-8")
    keys = [section.key for section in SECTIONS]
    assert {"fig1", "fig3", "fig4", "fig5", "table1", "table3", "table4", "op", "block"} <= {*keys}
    assert re.findall(r'<section id="([^"]+)"', text) == [*keys, "losses", "conditions"]
    for key in (*keys, "losses", "conditions"):
        assert f'href="#{key}"' in text


def test_the_paper_s_values_stand_beside_ours(report):
    text = plain(part(report, "table3"))
    assert "ea-6 0.976 ± 0.001" in text
    assert "paper's ea-6 0.973" in text
    assert "paper's ea-6 1.23 / 1.79" in plain(part(report, "table4"))
    assert "ea-6, paper" in part(report, "table3")
    assert "The paper says" in part(report, "table1")


def test_a_section_without_rows_says_which_command_makes_them(few, tmp_path):
    page, *_ = html.write(few, tmp_path / "out")
    for section in SECTIONS:
        if section.key != "fig3":
            assert f"Not measured here yet. {section.command} makes it." in plain(
                part(page, section.key)
            )


def test_a_run_that_has_not_come_to_its_end_is_not_shown(few, tmp_path):
    made.write(few / "table3.jsonl", made.table3_rows()[:-1])
    page, *_ = html.write(few, tmp_path / "out")
    assert "`" not in part(page, "table3")
    assert "eattn reproduce table3 continues it" in plain(part(page, "table3"))
    assert "0.976" not in part(page, "table3")


def test_rows_of_a_quick_run_serve_where_there_is_no_full_one_and_say_so(few, tmp_path):
    made.write(few / "table3-quick.jsonl", made.table3_rows())
    page, *_ = html.write(few, tmp_path / "quick")
    assert "a quick run" in part(page, "table3")
    made.write(few / "table3.jsonl", made.table3_rows())
    page, *_ = html.write(few, tmp_path / "full")
    assert "a quick run" not in part(page, "table3")


def test_where_we_lose_is_told_from_promises_and_rows(report):
    lost = plain(part(report, "losses"))
    assert "SCP1: EA-6 less SA: −0.04 ×, promised ≥ -0.01." in lost
    assert "SCP1, epoch picked on TEST, as the paper: EA-6 0.857, SA 0.897." in lost
    assert "ETTh2/6, windows in the order of time: MAE of EA-6 1.230, of lightgbm 1.107." in lost
    assert "At 2qk = −2 the polynomial of order 2 is 639 % off eˣ." in lost
    assert "`sa`" not in lost
    assert "sa needs less memory than EA-6 at L = 256: by 1.06 ×." in lost
    assert "sa trains faster" not in lost
    assert "sa takes less time per token than EA-6 at batch 8, position = 256: by 4.31 ×." in lost
    assert "position = 16,384" not in lost
    assert "sa takes less time per token than EA-6 up to token 256." in lost
    assert "JAP" not in lost


def test_without_losses_that_is_said(tmp_path):
    made.write(tmp_path / "table3.jsonl", [row for row in made.table3_rows() if _wins(row)])
    page, *_ = html.write(tmp_path, tmp_path / "out")
    assert "Nowhere in the rows at hand." in part(page, "losses")
    assert "1 of 1 promises kept." in plain(page.read_text(encoding="utf-8"))


def _wins(row: dict) -> bool:
    return row.get("data") != "SelfRegulationSCP1" and row.get("verdict") != "miss"


def test_conditions_name_source_machine_versions_seeds_and_date(report):
    told = plain(part(report, "conditions"))
    assert "table3.jsonl 2026-01-02 03:04 UTC 0123456789ab a machine, 2 cores, 8 GiB" in told
    assert "eattn 0.1.0, torch 2.13.0, python 3.11.7 0, 1 51" in told
    for path in RESULTS.glob("*.jsonl"):
        assert path.name in told


def test_what_rows_say_is_escaped(tmp_path):
    bad = '<script>alert("x")</script>'
    rows = [*made.table3_rows()[:-1], made.ratio(bad, 1, 2, "miss"), made.FINISHED]
    made.write(tmp_path / "table3.jsonl", rows)
    page, *_ = html.write(tmp_path, tmp_path / "out")
    assert bad not in page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert" in part(page, "losses")


def test_a_new_section_is_one_object(few, tmp_path):
    section = Section(
        key="fig3",
        title="Another",
        intro="With `code`.",
        command="eattn another",
        draw=fig3.draw,
        markdown=lambda rows: "| a | b |\n|---|---|\n| 1 \\| 2 | `x` |\n\n- an item\n\nand text\\*",
        losses=lambda rows: ["it loses"],
    )
    page, *figures = html.write(few, tmp_path / "out", sections=[section])
    source = part(page, "fig3")
    assert [path.name for path in figures] == ["fig3.png", "fig3.svg"]
    assert '<th scope="row">1 | 2</th><td><code>x</code></td>' in source
    assert "<li>an item</li>" in source
    assert "and text*" in source
    assert "With <code>code</code>." in source
    assert "it loses" in part(page, "losses")


# ---- what is refused -----------------------------------------------------------------------------


def test_a_folder_that_is_not_there_or_has_no_rows_is_refused(tmp_path, capsys):
    missing = tmp_path / "missing"
    assert cli.main(["report", "--results", str(missing)]) == 1
    assert f"there is none at {missing}" in capsys.readouterr().err
    assert cli.main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "has no rows to report on; `eattn reproduce fig1` makes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_bad_line_is_named_and_a_torn_last_one_left_out(few, tmp_path, capsys):
    path = few / "fig3.jsonl"
    text = path.read_text(encoding="utf-8")
    path.write_text(text + '{"what": "exp", "da', encoding="utf-8")
    html.write(few, tmp_path / "torn")
    path.write_text(text + "[]\n", encoding="utf-8")
    number = text.count("\n") + 1
    assert cli.main(["report", "--results", str(few), "--out", str(tmp_path / "bad")]) == 1
    assert f"fig3.jsonl must hold rows with `what` and `date`, line {number} is none" in (
        capsys.readouterr().err
    )


def test_an_install_carries_template_style_and_script():
    settings = tomllib.loads((RESULTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["paper.report.html"]
    names = {path.name for path in Path(html.__file__).parent.glob("*.*")}
    static = {name for name in names if not name.endswith(".py")}
    assert static == {"page.html", "page.css", "page.js"}
    assert all(any(PurePath(name).match(pattern) for pattern in patterns) for name in static)
