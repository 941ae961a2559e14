"""`eattn forecast`: fit, predict and stream, and errors for invalid input."""

import io
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from eattn.cli.forecast import app
from eattn.timeseries import EAForecaster

SMALL = ["--horizon", "3", "--dim", "8", "--depth", "1", "--epochs", "1"]
HOURS = pd.date_range("2024-01-01", periods=60, freq="h")
NAME = "EAForecaster"


def run(*args: object, stdin: str | None = None) -> str:
    """Return the stdout of a command, or raise its error."""
    result = CliRunner().invoke(
        app, [str(arg) for arg in args], input=stdin, env={"COLUMNS": "200"}
    )
    if result.exception is not None:
        raise result.exception
    return result.stdout


def table(**columns) -> pd.DataFrame:
    values = np.sin(np.arange(60) / 4)
    return pd.DataFrame({"date": HOURS, "load": 2 * values, "OT": 5 + values} | columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create data.csv and fit a model with quantiles to its column OT."""
    folder = tmp_path_factory.mktemp("forecast")
    table().to_csv(folder / "data.csv", index=False)
    options = ["--target", "OT", "--quantiles", "0.9,0.1", "--out", folder / "model"]
    output = run("fit", folder / "data.csv", *options, *SMALL)
    summary = "1 series, calendar fields: hour, weights of step "
    assert output.startswith(f"{folder / 'model'}: {summary}")
    return folder


def test_predict_continues_the_history_of_fit(folder):
    text = run("predict", folder / "model")
    found = pd.read_csv(io.StringIO(text), parse_dates=["ds"])
    assert list(found) == ["unique_id", "ds", NAME, f"{NAME}-q10", f"{NAME}-q90"]
    assert found["unique_id"].tolist() == ["OT"] * 3
    assert found["ds"].tolist() == [*pd.date_range(HOURS[-1], periods=4, freq="h")[1:]]
    expected = EAForecaster.load(folder / "model").predict()
    np.testing.assert_allclose(found.iloc[:, 2:], expected.iloc[:, 2:], rtol=1e-8)
    assert text == run("predict", folder / "model", folder / "data.csv")


def test_predict_continues_other_data(folder, tmp_path):
    table()[:40].rename(columns={"OT": "temperature"}).to_csv(tmp_path / "new.csv", index=False)
    options = ["--target", "temperature", "--horizon", 5]
    text = run("predict", folder / "model", tmp_path / "new.csv", *options)
    found = pd.read_csv(io.StringIO(text), parse_dates=["ds"])
    assert found["ds"].tolist() == [*HOURS[40:45]]
    assert found["unique_id"].tolist() == ["temperature"] * 5


def test_id_column_identifies_the_series(tmp_path):
    both = pd.concat([table(shop="b"), table(shop="a")[:50]])
    both[["shop", "date", "OT"]].to_csv(tmp_path / "data.csv", index=False)
    model = tmp_path / "model"
    run("fit", tmp_path / "data.csv", "--id", "shop", "--out", model, *SMALL)
    found = pd.read_csv(io.StringIO(run("predict", model, tmp_path / "data.csv")))
    assert found["unique_id"].tolist() == ["b"] * 3 + ["a"] * 3
    lines = run("stream", model, stdin="shop,OT,date\na,5,2024-01-03 02:00\nb,4,2024-01-03 12:00\n")
    assert [json.loads(line)["unique_id"] for line in lines.splitlines()] == ["a", "b"]


def test_times_may_be_integers(tmp_path):
    path = tmp_path / "years.csv"
    table(year=range(1940, 2000))[["year", "OT"]].to_csv(path, index=False)
    run("fit", path, "--time", "year", "--out", tmp_path / "model", *SMALL)
    forecast = pd.read_csv(io.StringIO(run("predict", tmp_path / "model", path)))
    assert forecast["ds"].tolist() == [2000, 2001, 2002]
    answer = json.loads(run("stream", tmp_path / "model", stdin="2000,5\n"))
    assert (answer["cutoff"], answer["ds"]) == (2000, [2001, 2002, 2003])


def test_known_dataset_is_found_in_the_data_folder(tmp_path):
    table().to_csv(tmp_path / "ETTh2.csv", index=False)
    run("fit", tmp_path / "ETTh2.csv", "--out", tmp_path / "a", "--target", "OT", *SMALL)
    run("fit", "ETTh2", "--data-dir", tmp_path, "--out", tmp_path / "b", *SMALL)
    expected = run("predict", tmp_path / "a")
    assert run("predict", tmp_path / "b") == expected
    assert run("predict", tmp_path / "b", "ETTh2", "--data-dir", tmp_path) == expected


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_table_may_be_a_named_pipe(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=[CSV])
    writer.start()
    found = run("predict", folder / "model", tmp_path / "pipe")
    writer.join()
    assert found == run("predict", folder / "model")


def test_files_are_overwritten_only_by_force(folder, tmp_path):
    csv, png = tmp_path / "out.csv", tmp_path / "out.png"
    args = ["predict", folder / "model", folder / "data.csv", "--out", csv, "--plot", png]
    assert run(*args) == ""
    assert csv.read_text() == run("predict", folder / "model")
    assert png.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"out\.csv already exists; use --force"):
        run(*args)
    csv.unlink()
    with pytest.raises(ValueError, match=r"out\.png already exists; use --force"):
        run(*args)
    assert not csv.exists()
    run(*args, "--force")
    assert {path.name for path in tmp_path.iterdir()} == {"out.csv", "out.png"}
    run("predict", folder / "model", "--plot", tmp_path / "plot.svg")  # history from the states
    assert "history" in (tmp_path / "plot.svg").read_text()
    with pytest.raises(ValueError, match="already holds a model"):
        run("fit", folder / "data.csv", "--target", "OT", "--out", folder / "model", *SMALL)


CSV = table().to_csv(index=False)
LINES = CSV.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        ("", [], r"data\.csv is empty"),
        (LINES[0], [], r"data\.csv has a header but no rows"),
        (
            CSV + "2024-01-03 12:00:00,1\n",
            [],
            r"data\.csv, line 62: expected 3 cells as in the header, got 2",
        ),
        (CSV.replace(LINES[5], "2024-01-01 04:00:00,1,x\n"), [], r"line 6, column 'OT'.*got 'x'"),
        (CSV + LINES[-1], [], r"data\.csv, line 62: .* already occurs in line 61"),
        ("".join([LINES[0], *LINES[:0:-1]]), [], r"data\.csv, line 3: .*sort the rows by time"),
        (CSV.replace("04:00:00", "04:17:00", 1), [], r"data\.csv: series 'OT'.*04:17:00 is not a"),
        (CSV, ["--target", "OTT"], r"data\.csv has no column 'OTT': did you mean 'OT'"),
        (CSV, ["--time", "dates"], r"data\.csv has no column 'dates': did you mean 'date'"),
        (CSV, ["--target", "none"], r"several numeric columns: load, OT; choose one with --target"),
        (CSV, ["--horizon", "0"], r"horizon"),
        (CSV, ["--horizon", "60"], r"data\.csv: the longest series has 60 values"),
        (CSV, ["--window", "58"], r"data\.csv: series 'OT' has 60 values, but window=58"),
        (CSV, ["--mixer", "bogus"], r"^unknown mixer 'bogus'"),
        (CSV, ["--quantiles", "low"], r"--quantiles must be numbers such as 0\.1,0\.9, got 'low'"),
        (CSV, ["--quantiles", "0"], r"^quantiles must be distinct and between 0 and 1"),
        (CSV, ["--lr", "-1"], r"^lr must be above 0"),
        (table(OT=5).to_csv(index=False), [], r"data\.csv: series 'OT' is constant \(5\)"),
        (CSV, ["--freq", "none"], r"^freq must be a pandas frequency.*got 'none'"),
    ],
)
def test_error_names_the_invalid_input(tmp_path, content, options, reason):
    (tmp_path / "data.csv").write_text(content)
    options = ["--target", "OT", *options] if "--target" not in options else options
    options = [] if options == ["--target", "none"] else options
    args = ["fit", tmp_path / "data.csv", "--out", tmp_path / "model", *SMALL, *options]
    result = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})
    if isinstance(result.exception, SystemExit):  # raised by Typer
        assert reason in result.output
    else:
        with pytest.raises(ValueError, match=reason):
            raise result.exception
    assert result.exit_code != 0
    assert not (tmp_path / "model").exists()


def test_errors_name_wrong_files_and_folders(folder, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "new.csv").write_text("date,OT\n2024-01-01,1\n2024-01-02\n")
    new = ["--out", tmp_path / "model"]
    for args, reason in [
        (
            ("fit", tmp_path / "no.csv", *new),
            r"no\.csv does not exist; expected a CSV or Parquet file",
        ),
        (("fit", "ETTx2", *new), "file ETTx2 does not exist, and it is an unknown dataset 'ETTx2'"),
        (("fit", "JAP", *new), "JAP is a classification dataset; expected a forecasting dataset"),
        (
            ("predict", tmp_path / "nothing"),
            "nothing does not exist; expected the folder of a saved model",
        ),
        (("predict", tmp_path / "broken"), "is corrupt"),
        (("predict", folder / "model", tmp_path / "new.csv"), "line 3: expected 2 cells"),
    ]:
        with pytest.raises(ValueError, match=reason):
            run(*args)


TIMES = pd.date_range(HOURS[-1], periods=4, freq="h")[1:]
VALUES = (5.0, np.nan, 5.5)
NEW = [
    f"{t:%Y-%m-%d %H:%M},{'' if np.isnan(y) else y}\n" for t, y in zip(TIMES, VALUES, strict=True)
]


def test_stream_equals_update_and_predict(folder):
    model = EAForecaster.load(folder / "model")
    lines = run("stream", folder / "model", stdin="".join(NEW)).splitlines()
    for line, value, time in zip(lines, VALUES, TIMES, strict=True):
        answer, expected = json.loads(line), model.update([value]).predict()
        assert answer["unique_id"] == "OT"
        assert pd.Timestamp(answer["cutoff"]) == time
        assert answer["ds"] == expected["ds"].astype(str).tolist()
        for column in expected.columns[2:]:
            np.testing.assert_allclose(answer[column], expected[column], rtol=1e-12)


def test_stream_reads_a_header_and_writes_csv(folder):
    named = ["OT,x,date\n", *(f"{v},1,{t}\n" for t, v in (row.strip().split(",") for row in NEW))]
    args = ["stream", folder / "model", "--horizon", 2, "--format", "csv"]
    text = run(*args, stdin="".join(named))
    found = pd.read_csv(io.StringIO(text))
    labels = [NAME, f"{NAME}-q10", f"{NAME}-q90"]
    assert list(found) == ["unique_id", "ds", *(f"{n}+{h}" for n in labels for h in (1, 2))]
    assert text == run(*args, stdin="".join(NEW))
    answer = json.loads(run("stream", folder / "model", stdin=NEW[0]))
    first = found.loc[0, [f"{NAME}-q90+1", f"{NAME}-q90+2"]].astype(float)
    np.testing.assert_allclose(first, answer[f"{NAME}-q90"][:2])


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (f"{NEW[0]}\n2024-01-03 13:00,x\n", "line 3: .*y must be a finite number, got 'x'"),
        (f"{NEW[0]}2024-01-03 13:00,1e300\n", "line 2: .*y must be a finite number, got '1e300'"),
        (f"{NEW[0]}soon,1\n", "line 2: ds must be a time such as 2024-01-31 12:00, got 'soon'"),
        (f"{NEW[0]}1\n", "line 2: expected 2 cells, got 1"),
        (NEW[0] * 2, "line 2: series 'OT': 2024-01-03 12:00:00 is already known"),
        (f"{NEW[0]}2024-01-01 12:00,1\n", "line 2: .*is before 2024-01-03 12:00:00"),
        (f"{NEW[0]}2024-01-03 13:20,1\n", "line 2: .*13:20:00 is not a whole number of steps"),
        (f"QT,{NEW[0]}", "line 1: unknown series 'QT'; known series are 'OT'"),
        (f"1,2,{NEW[0]}", "line 1: rows must be ds,y or unique_id,ds,y, got 4 cells"),
        ("time,OT\n", "line 1: the header time, OT names y but not ds; name the column 'date'"),
        (
            "ds,temperature\n",
            "line 1: the header ds, temperature names ds but not y; name the column 'OT'",
        ),
    ],
)
def test_error_names_the_malformed_line(folder, lines, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        run("stream", folder / "model", stdin=lines)


def start(folder) -> subprocess.Popen[str]:
    """Start `eattn forecast stream` as a process."""
    code = (
        "import sys; from eattn import cli; from eattn.cli import forecast;"
        " cli.app = forecast.app; sys.exit(cli.main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "stream", str(folder / "model")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def ask(process: subprocess.Popen[str], row: str) -> str:
    process.stdin.write(row)
    process.stdin.flush()
    return process.stdout.readline()


def test_stream_answers_each_row_and_ends_with_its_reader(folder):
    with start(folder) as process:
        for row in NEW[:2]:
            assert json.loads(ask(process, row))["unique_id"] == "OT"
        process.stdout.close()
        process.stdin.write(NEW[2])
        process.stdin.close()
        assert process.wait() == 0
        assert process.stderr.read() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for processes")
def test_interrupt_ends_the_stream_without_a_traceback(folder):
    with start(folder) as process:
        ask(process, NEW[0])
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == "eattn: interrupted\n"
