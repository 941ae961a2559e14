"""`eattn data`: what it prints, and that listing never downloads."""

import gzip
import re

import pytest
from typer.testing import CliRunner

from eattn.cli.data import app

ETTH2 = "date,HUFL,OT\n2016-07-01 00:00:00,1,2\n2016-07-01 01:00:00,3,\n2016-07-01 02:00:00,5,2\n"


def run(*args: object) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with ETTh2, an empty cache, and no network."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("nothing may be downloaded")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("eattn.data.locate.cache_dir", lambda: tmp_path / "cache")
    monkeypatch.delenv("EATTN_DATA", raising=False)
    folder = tmp_path / "data"
    (folder / "ETTh2").mkdir(parents=True)
    (folder / "ETTh2" / "ETTh2.csv.gz").write_bytes(gzip.compress(ETTH2.encode()))
    return folder


def cells(output: str, name: str) -> list[str]:
    """The cells of the row that begins with `name`."""
    [line] = [
        line for line in output.splitlines() if line.split()[:1] == [name] and "/" not in line
    ]
    return re.split(r"\s{2,}", line.strip())[1:]


@pytest.mark.parametrize("command", [[], ["list"], ["get"], ["show"]], ids=" ".join)
def test_every_command_has_help_with_an_example(command):
    assert "Example: eattn data" in run(*command, "--help")


def test_list_counts_table_2_in_the_data_with_the_papers_values_beside(folder):
    output = run("list", "--data-dir", folder)
    assert cells(output, "JAP") == ["12 (12)", "7–29 (29)", "9 (9)", "270", "370"]
    assert cells(output, "ETTh2")[:3] == ["3", "2", "every 1 h"]
    assert cells(output, "ETTh2")[-1] == "OT"


def test_list_says_where_each_set_is_or_how_to_get_it(folder, monkeypatch):
    monkeypatch.setenv("EATTN_DATA", str(folder))
    said = dict(
        line.split(None, 1) for line in run("list").splitlines() if "," in line or ":" in line
    )
    assert said["ETTh2"] == f"data folder, {folder / 'ETTh2'}"
    assert said["JapaneseVowels"].startswith("aeon, ")
    assert said["ETTm1"] == "not here: eattn data get ETTm1"


def test_list_says_so_where_there_is_nothing_of_a_kind(folder):
    assert "Forecasting\n  none is here\n" in run("list", "--data-dir", folder.parent)


def test_list_goes_on_past_a_file_it_cannot_read_and_then_fails(folder):
    (folder / "ETTm2.csv").write_text("date,OT\n2016-07-01,1\n2016-07-02,x\n")
    result = CliRunner().invoke(app, ["list", "--data-dir", str(folder)], env={"COLUMNS": "200"})
    assert "ETTm2.csv, line 3, column 'OT'" in result.output
    assert cells(result.output, "JAP")
    assert str(result.exception) == "cannot read ETTm2"


def test_get_prints_where_a_set_is_that_is_here_already(folder, monkeypatch):
    monkeypatch.setenv("EATTN_DATA", str(folder))
    output = run("get", "etth2", "JAP").splitlines()
    assert output[0] == f"ETTh2: {folder / 'ETTh2' / 'ETTh2.csv.gz'}"
    assert [line.split("_")[-1] for line in output[1:]] == ["TRAIN.ts", "TEST.ts"]


def test_get_refuses_a_wrong_name_before_it_gets_anything(folder):
    with pytest.raises(ValueError, match="did you mean Traffic"):
        run("get", "UWG", "Trafic")


def test_show_tells_what_a_table_contains(folder):
    output = run("show", folder / "ETTh2" / "ETTh2.csv.gz")
    facts = dict(line.split(None, 1) for line in output.splitlines()[:5])
    assert facts["rows"].strip() == "3"
    assert facts["step"] == "every 1 h"
    assert facts["time"] == "date, 2016-07-01 00:00:00 to 2016-07-01 02:00:00"
    assert cells(output, "HUFL") == ["none", "1", "3", "5"]
    assert cells(output, "OT") == ["1 of 3", "2", "2", "2 (constant)"]


def test_show_tells_several_series_and_text_apart(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(
        "unique_id,ds,y,town\na,2020-01-01,1,Rome\na,2020-01-02,2,Rome\nb,2020-01-01,3,x\n"
    )
    output = run("show", path)
    assert "2 of 1–2 rows" in output
    assert "text in town" in output


def test_show_tells_what_a_ts_file_contains(tmp_path):
    path = tmp_path / "toy.ts"
    path.write_text("@classLabel true yes no never\n@data\n1,2:3,4:yes\n1,?,3:4,5,6:no\n7:8:no\n")
    output = run("show", path)
    facts = dict(line.split(None, 1) for line in output.splitlines()[:6])
    assert facts == {
        "set": "toy",
        "cases": "3",
        "channels": "2",
        "length": "1–3",
        "missing": "1 of 12",
        "classes": "3",
    }
    assert [cells(output, name) for name in ("yes", "no", "never")] == [["1"], ["2"], ["0"]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@targetLabel true\n@data\n1:0.5\n2:-1\n", "-1 to 0.5"),
        ("@classLabel false\n@data\n1\n", "none"),
    ],
)
def test_show_tells_targets_and_the_lack_of_labels(tmp_path, text, said):
    path = tmp_path / "toy.ts"
    path.write_text(text)
    assert run("show", path).splitlines()[-1].endswith(said)


def test_show_takes_the_name_of_the_time_column(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("a,b,x\n2020-01-01,2021-01-01,1\n")
    assert "b, 2021-01-01 00:00:00" in run("show", path, "--time", "b")
    with pytest.raises(ValueError, match="several columns of times"):
        run("show", path)
