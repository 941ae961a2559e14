"""`eattn data`: output of list, get and show."""

import gzip
import re
from importlib import import_module

import pytest
from typer.testing import CliRunner

from eattn.cli.data import app

ETTH2 = "date,HUFL,OT\n2016-07-01 00:00:00,1,2\n2016-07-01 01:00:00,3,\n2016-07-01 02:00:00,5,2\n"


def run(*args: object) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Create a data folder with ETTh2 and an empty cache; downloads fail."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("nothing may be downloaded")

    locate = import_module("eattn.data.locate")  # the attribute eattn.data.locate is the function
    monkeypatch.setattr(locate, "fetch", refuse)
    monkeypatch.setattr(locate, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.delenv("EATTN_DATA", raising=False)
    folder = tmp_path / "data"
    (folder / "ETTh2").mkdir(parents=True)
    (folder / "ETTh2" / "ETTh2.csv.gz").write_bytes(gzip.compress(ETTH2.encode()))
    return folder


def cells(output: str, name: str) -> list[str]:
    """Return the cells of the row that begins with `name`."""
    [line] = [
        line for line in output.splitlines() if line.split()[:1] == [name] and "/" not in line
    ]
    return re.split(r"\s{2,}", line.strip())[1:]


def test_list_prints_the_shape_of_each_dataset(folder):
    output = run("list", "--data-dir", folder)
    assert cells(output, "JAP") == ["12", "7–29", "9", "270", "370"]
    assert cells(output, "ETTh2")[:3] == ["3", "2", "h"]
    assert cells(output, "ETTh2")[-1] == "OT"


def test_list_prints_where_datasets_are_or_how_to_get_them(folder, monkeypatch):
    monkeypatch.setenv("EATTN_DATA", str(folder))
    lines = dict(
        line.split(None, 1) for line in run("list").splitlines() if "," in line or ":" in line
    )
    assert lines["ETTh2"] == f"data folder, {folder / 'ETTh2'}"
    assert lines["JapaneseVowels"].startswith("aeon, ")
    assert lines["ETTm1"] == "not on this machine; download it with: eattn data get ETTm1"


def test_list_requires_every_split_of_a_dataset(folder):
    (folder.parent / "UWaveGestureLibrary_TRAIN.ts").write_text("@data\n1:a\n")
    output = run("list", "--data-dir", folder.parent)
    assert "Forecasting\n  none found\n" in output
    assert "eattn data get UWaveGestureLibrary" in output


def test_list_reports_unreadable_files_at_the_end(folder):
    (folder / "ETTm2.csv").write_text("date,OT\n2016-07-01,1\n2016-07-02,x\n")
    result = CliRunner().invoke(app, ["list", "--data-dir", str(folder)])
    assert "ETTm2.csv, line 3, column 'OT'" in result.output
    assert cells(result.output, "JAP")
    assert str(result.exception) == "cannot read ETTm2"


def test_get_prints_the_paths_of_existing_datasets(folder, monkeypatch):
    monkeypatch.setenv("EATTN_DATA", str(folder))
    output = run("get", "etth2", "JAP").splitlines()
    assert output[0] == f"ETTh2: {folder / 'ETTh2' / 'ETTh2.csv.gz'}"
    assert [line.split("_")[-1] for line in output[1:]] == ["TRAIN.ts", "TEST.ts"]


def test_get_checks_all_names_first(folder):
    with pytest.raises(ValueError, match="did you mean Traffic"):
        run("get", "UWG", "Trafic")


def test_show_describes_a_table(folder):
    output = run("show", folder / "ETTh2" / "ETTh2.csv.gz")
    lines = dict(line.split(None, 1) for line in output.splitlines()[:5])
    assert lines["rows"].strip() == "3"
    assert lines["step"] == "h"
    assert lines["time"] == "date, 2016-07-01 00:00:00 to 2016-07-01 02:00:00"
    assert cells(output, "HUFL") == ["none", "1", "3", "5"]
    assert cells(output, "OT") == ["1 of 3", "2", "2", "2 (constant)"]


def test_wide_tables_are_not_truncated(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["multivariate_" * 5 + str(n) for n in range(3)]
    path = tmp_path / "wide.csv"
    path.write_text(",".join(["ds", *names]) + "\n2020-01-01,1,2,3\n2020-01-02,1,2,4\n")
    assert all(name in run("show", path) for name in names)
    assert "…" not in run("show", path)


def test_show_describes_several_series_and_text(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(
        "unique_id,ds,y,town\na,2020-01-01,1,Rome\na,2020-01-02,2,Rome\nb,2020-01-01,3,x\n"
    )
    output = run("show", path)
    assert "2, each of 1–2 rows" in output
    assert "text columns town" in output


def test_show_describes_a_ts_file(tmp_path):
    path = tmp_path / "toy.ts"
    path.write_text("@classLabel true yes no never\n@data\n1,2:3,4:yes\n1,?,3:4,5,6:no\n7:8:no\n")
    output = run("show", path)
    lines = dict(line.split(None, 1) for line in output.splitlines()[:6])
    assert lines == {
        "dataset": "toy",
        "samples": "3",
        "channels": "2",
        "length": "1–3",
        "missing": "1 of 12",
        "classes": "3",
    }
    assert [cells(output, name) for name in ("yes", "no", "never")] == [["1"], ["2"], ["0"]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("@targetLabel true\n@data\n1:0.5\n2:-1\n", "-1 to 0.5"),
        ("@classLabel false\n@data\n1\n", "none"),
    ],
)
def test_show_describes_targets_and_missing_labels(tmp_path, text, value):
    path = tmp_path / "toy.ts"
    path.write_text(text)
    assert run("show", path).splitlines()[-1].endswith(value)


def test_show_accepts_a_time_column(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("a,b,x\n2020-01-01,2021-01-01,1\n")
    assert "b, 2021-01-01 00:00:00" in run("show", path, "--time", "b")
    with pytest.raises(ValueError, match="several time columns: a, b; choose one with time"):
        run("show", path)


@pytest.mark.parametrize(
    ("times", "step"),
    [
        (["2020-01-01 00:00", "2020-01-01 00:15", "2020-01-01 00:30"], "15min"),
        (["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-07"], "D, 3 of 7 steps missing"),
        (["2020-01-01"], "one row"),
        (["1990", "1995", "2000", "2010"], "5, 1 of 5 steps missing"),
        (["01.01.2020", "01.02.2020", "01.03.2020"], "MS"),
        (["2020Q3", "2020Q2", "2020Q1"], "QS-OCT"),
        (["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04", "2020-01-05 07:00"], "uneven: "),
    ],
)
def test_show_prints_the_frequency_and_missing_steps(tmp_path, times, step):
    path = tmp_path / "toy.csv"
    path.write_text("ds,y\n" + "".join(f"{time},1\n" for time in times))
    lines = dict(line.split(None, 1) for line in run("show", path).splitlines()[:4])
    assert lines["step"].startswith(step)


def test_show_takes_the_format_of_the_file(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("shop;day;y\na;01/02/2020;1.234\nb;01/02/2020;5.678\n")
    options = ["--id", "shop", "--date-format", "%d/%m/%Y", "--thousands", "."]
    output = run("show", path, *options, "--sep", ";", "--encoding", "latin-1")
    assert "day, 2020-02-01 00:00:00" in output
    assert cells(output, "y") == ["none", "1234", "3456", "5678"]
    (tmp_path / "toy.ts").touch()
    with pytest.raises(ValueError, match=r"--date-format cannot be used with .*toy\.ts"):
        run("show", tmp_path / "toy.ts", *options[2:4])
