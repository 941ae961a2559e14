"""`eattn forecast`: fit, predict and stream, and errors for invalid input."""

import io
import json
import os
import re
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
from eattn.timeseries.metrics import scores

SMALL = ["--horizon", "3", "--pretrained", "none", "--dim", "8", "--depth", "1", "--epochs", "1"]
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
    summary = r": 1 series \(1 [\w ]+\), frequency h \(inferred\), season 24, validation"
    assert re.search(f"^{folder / 'model'}{summary} pinball loss [\\d.e-]+\n$", output)
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


def test_backtest_prints_scores_and_writes_forecasts(folder, tmp_path):
    args = ["backtest", folder / "model", folder / "data.csv", "--windows", 3, "--horizon", 2]
    text = run(*args, "--step", 1, "--out", tmp_path / "forecasts.csv")
    found = pd.read_csv(io.StringIO(text), index_col="unique_id")
    assert list(found.index) == ["OT", "all"]
    assert list(found) == ["MAE", "RMSE", "sMAPE", "MASE", "pinball", "coverage"]
    history = pd.DataFrame({"unique_id": "OT", "ds": HOURS, "y": table()["OT"]})
    model = EAForecaster.load(folder / "model")
    expected = model.backtest(3, 1, horizon=2, df=history)
    forecasts = pd.read_csv(tmp_path / "forecasts.csv", parse_dates=["cutoff", "ds"])
    pd.testing.assert_frame_equal(forecasts, expected, rtol=1e-8)
    np.testing.assert_allclose(found, scores(expected), rtol=1e-8)
    with pytest.raises(ValueError, match=r"forecasts\.csv already exists; use --force"):
        run(*args, "--out", tmp_path / "forecasts.csv")
    with pytest.raises(ValueError, match=r"data\.csv: series 'OT' has 60 values, but 99 windows"):
        run(*args, "--windows", 99)
    assert run(*args, "--refit") != run(*args)


def test_update_continues_a_saved_model(folder, tmp_path):
    model, new = tmp_path / "model", tmp_path / "data.csv"
    longer = table(date=HOURS).assign(date=HOURS + pd.Timedelta("2h"))  # overlaps with the history
    longer.rename(columns={"OT": "x"}).to_csv(new, index=False)
    text = run("update", folder / "model", new, "--target", "x", "--out", model)
    assert text == f"{model}: 2 new steps of 1 series, up to 2024-01-03 13:00:00\n"
    expected = EAForecaster.load(folder / "model").update(longer["OT"].to_numpy()[-2:]).predict()
    found = EAForecaster.load(model).predict()
    pd.testing.assert_frame_equal(found, expected)
    assert "0 new steps of 0 series" in run("update", model, new, "--target", "x")  # in place
    with pytest.raises(ValueError, match="already holds a model"):
        run("update", folder / "model", new, "--out", model)
    longer.assign(date=HOURS + pd.Timedelta("150min")).to_csv(new, index=False)
    with pytest.raises(ValueError, match=r"data\.csv: .*13:30:00 is not a whole number of steps"):
        run("update", model, new)
    pd.testing.assert_frame_equal(EAForecaster.load(model).predict(), found)


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
        (CSV, ["--freq", "D"], r"data\.csv: series 'OT': the times have .* 'h', not 'D'"),
        (
            CSV,
            ["--date-format", "%d/%m/%Y"],
            r"line 2, column 'date' must have the format %d/%m/%Y",
        ),
        (CSV, ["--sep", ";"], r"at least two columns, got 'date,load,OT'"),
        (CSV.replace("04:00:00", "04:17:00", 1), [], r"data\.csv: series 'OT'.*04:17:00 is not a"),
        (CSV, ["--target", "OTT"], r"data\.csv has no column 'OTT': did you mean 'OT'"),
        (CSV, ["--time", "dates"], r"data\.csv has no column 'dates': did you mean 'date'"),
        (CSV, ["--target", "none"], r"several numeric columns: load, OT; choose one with --target"),
        (CSV, ["--horizon", "0"], r"horizon"),
        ("".join(LINES[:4]), [], r"data\.csv: the longest series has 3 values, but training needs"),
        (CSV, ["--future", "load,OTT"], r"data\.csv has no column 'OTT': did you mean 'OT'"),
        (CSV, ["--past", "OT"], r"data\.csv: a covariate must be another column, got 'OT'"),
        (CSV, ["--past", "load,,"], r"^--past must be columns such as temp,promo, got 'load,,'"),
        (CSV, ["--past", "load", "--future", "load"], r"^column 'load' is in futr_exog_list and"),
        (CSV, ["--static", "load"], r"data\.csv: .*: load must be constant in each series"),
        (CSV, ["--target", "none", "--past", "load,OT"], r"no numeric column to forecast besides"),
        (CSV, ["--season", "24,x"], r"^--season must be numbers such as 24,168, got '24,x'"),
        (CSV, ["--season", "0"], r"^season_length must be at least 1, got 0"),
        (CSV, ["--holidays", "XX"], r"^holidays must be the ISO code of a country.*got 'XX'"),
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
    options = options[2:] if options[:2] == ["--target", "none"] else options
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


DAYS = pd.date_range("2024-01-01", periods=70, freq="D")


@pytest.fixture(scope="module")
def shops(tmp_path_factory):
    """Create a table with covariates, split after 60 days, and fit a model to the first part."""
    folder, rng = tmp_path_factory.mktemp("covariates"), np.random.default_rng(0)
    parts = []
    for shop in ("b", "a"):
        temp, promo = rng.normal(10, 5, 70).round(2), np.where(rng.random(70) < 0.3, "yes", "no")
        own = {"temp": temp, "promo": promo, "visits": rng.normal(size=70), "region": f"R{shop}"}
        sales = 50 + 3 * temp + 20 * (promo == "yes") + rng.normal(size=70)
        parts.append(pd.DataFrame({"shop": shop, "date": DAYS, "sales": sales.round(3)} | own))
    both = pd.concat(parts)
    both[both["date"] < DAYS[60]].to_csv(folder / "data.csv", index=False)
    both[both["date"] >= DAYS[60]].to_csv(folder / "new.csv", index=False)
    covariates = ["--future", "temp, promo", "--past", "visits", "--static", "region"]
    columns = ["--id", "shop", "--target", "sales", *covariates]
    options = ["--holidays", "DE", "--season", 7, "--out", folder / "model", *SMALL[:-2]]
    options += ["--lr", 0.01]
    output = run("fit", folder / "data.csv", *columns, *options)
    counts, seasons = re.findall(r"2 series \((.*)\), frequency D .*, season (\d+),", output)[0]
    assert sum(int(part.split()[0]) for part in counts.split(", ")) == 2
    assert seasons == "7"
    return folder


def standard(path) -> pd.DataFrame:
    names = {"shop": "unique_id", "date": "ds", "sales": "y"}
    return pd.read_csv(path, parse_dates=["date"]).rename(columns=names)


def test_predict_reads_future_covariates(shops, tmp_path):
    args = ["predict", shops / "model", shops / "data.csv"]
    text = run(*args, "--future-data", shops / "new.csv")
    found = pd.read_csv(io.StringIO(text), parse_dates=["ds"])
    expected = EAForecaster.load(shops / "model").predict(futr_df=standard(shops / "new.csv"))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    plot = ["--plot", tmp_path / "plot.svg"]
    assert run("predict", shops / "model", "--future-data", shops / "new.csv", *plot) == text
    assert "10 to 90 %" in (tmp_path / "plot.svg").read_text()
    future = pd.read_csv(shops / "new.csv").drop(columns=["sales", "visits", "region"])
    future.assign(temp=future["temp"] + 5).to_csv(tmp_path / "warm.csv", index=False)
    assert run(*args, "--future-data", tmp_path / "warm.csv") != text
    future.assign(temp=[None, *future["temp"][1:]]).to_csv(tmp_path / "gap.csv", index=False)
    future.rename(columns={"date": "day"}).to_csv(tmp_path / "day.csv", index=False)
    other = ["--horizon", 11, "--future-data"]
    for options, reason in [
        ([], "the model needs future values of temp, promo; use --future-data FILE"),
        (
            ["--future-data", tmp_path / "gap.csv"],
            r"gap\.csv, row 0 \(series 'b', .*: temp must not",
        ),
        ([*other, shops / "new.csv"], r"new\.csv has no row of series 'b' at 2024-03-11"),
        (["--future-data", tmp_path / "day.csv"], r"day\.csv has no column 'date'"),
        (["--future-data", "ETTh2"], "ETTh2 is a known dataset; expected a CSV or Parquet file"),
    ]:
        with pytest.raises(ValueError, match=reason):
            run(*args, *options)


def test_update_reads_covariates_and_writes_scores(shops, tmp_path):
    new = pd.read_csv(shops / "new.csv")
    new.drop(columns="region").to_csv(tmp_path / "new.csv", index=False)  # not needed
    args = ["update", shops / "model", tmp_path / "new.csv", "--out", tmp_path / "model"]
    text = run(*args, "--scores", tmp_path / "scores.csv")
    assert "20 new steps of 2 series, up to 2024-03-10" in text
    rows = standard(shops / "new.csv")
    expected = EAForecaster.load(shops / "model")
    scores = expected.update(rows, return_scores=True, id_col="unique_id")
    found = pd.read_csv(tmp_path / "scores.csv", parse_dates=["ds"])
    pd.testing.assert_frame_equal(found, scores, check_dtype=False)
    assert found["score"].between(0, 1).all() and found["score"].nunique() > 10
    with pytest.raises(ValueError, match=r"scores\.csv already exists; use --force"):
        run(*args[:-1], tmp_path / "other", "--scores", tmp_path / "scores.csv")
    args = ["update", str(shops / "model"), str(shops / "new.csv"), "--out", str(tmp_path / "b")]
    assert CliRunner().invoke(app, args).stderr == ""  # region is not reported as unused


def test_backtest_reads_covariates(shops):
    text = run("backtest", shops / "model", shops / "data.csv", "--windows", 2)
    found = pd.read_csv(io.StringIO(text), index_col="unique_id")
    model = EAForecaster.load(shops / "model")
    expected = scores(model.backtest(2, df=standard(shops / "data.csv")))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    args = ["backtest", shops / "model", shops / "data.csv", "--windows", 1]
    assert run(*args, "--refit") != run(*args)


def test_stream_prints_the_scores_of_rows_with_covariates(shops):
    model, text = EAForecaster.load(shops / "model"), (shops / "new.csv").read_text()
    expected = model.update(standard(shops / "new.csv"), return_scores=True)
    lines = run("stream", shops / "model", "--anomalies", stdin=text).splitlines()
    found = pd.DataFrame(map(json.loads, lines))
    assert list(found) == ["unique_id", "ds", "y", "score"]
    assert pd.to_datetime(found["ds"]).tolist() == expected["ds"].tolist()
    np.testing.assert_allclose(found[["y", "score"]], expected[["y", "score"]], atol=1e-6)
    table = run("stream", shops / "model", "--anomalies", "--format", "csv", stdin=text)
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(table)), found)
    header, first, *_ = text.splitlines()
    for options, rows, reason in [
        ([], text, "no future values of temp, promo: use predict, or --anomalies"),
        (["--anomalies"], first, "line 1: a header must name the columns, among them temp, promo"),
        (["--anomalies"], "date,sales,temp\n", "lacks the column 'promo'"),
        (["--anomalies"], f"{header}\nb,2024-03-01,1,warm,no,0,\n", "temp must be a finite number"),
        (["--anomalies", "--horizon", 2], "", "horizon cannot be combined with anomalies"),
    ]:
        with pytest.raises(ValueError, match=reason):
            run("stream", shops / "model", *options, stdin=rows)


def test_stream_without_covariates_prints_scores(folder):
    lines = run("stream", folder / "model", "--anomalies", stdin="".join(NEW)).splitlines()
    found = [json.loads(line) for line in lines]
    assert [answer["y"] for answer in found] == [5.0, None, 5.5]
    assert found[1]["score"] == 0
    outlier = f"{TIMES[0]},5\n{TIMES[1]},99\n"
    lines = run("stream", folder / "model", "--anomalies", stdin=outlier).splitlines()
    usual, high = (json.loads(line)["score"] for line in lines)
    assert high > 0.5 > usual


def test_future_data_is_refused_by_models_without_covariates(folder):
    with pytest.raises(ValueError, match="the model was fitted without --future"):
        run("predict", folder / "model", "--future-data", folder / "data.csv")


def test_known_dataset_may_have_covariates(tmp_path):
    table().to_csv(tmp_path / "ETTh2.csv", index=False)
    options = ["--data-dir", tmp_path, "--past", "load", *SMALL]
    run("fit", "ETTh2", "--out", tmp_path / "model", *options)
    assert EAForecaster.load(tmp_path / "model").hist_exog_list == ["load"]
    with pytest.raises(ValueError, match="ETTh2 has no column 'HUFL'"):
        run("fit", "ETTh2", "--out", tmp_path / "other", *options, "--past", "HUFL")


def test_numeric_ids_are_found_in_tables(tmp_path):
    frame = pd.concat([table(unique_id=7), table(unique_id=8)]).drop(columns="load")
    names = dict(time_col="date", target_col="OT")
    model = EAForecaster(3, pretrained=None, dim=8, depth=1, epochs=1).fit(frame, **names)
    model.save(tmp_path / "model")
    frame["date"] += pd.Timedelta("1h")
    frame.to_csv(tmp_path / "new.csv", index=False)
    text = run("update", tmp_path / "model", tmp_path / "new.csv")
    assert "2 new steps of 2 series" in text


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
    with pytest.warns(UserWarning, match="columns that are not used: x$"):
        text = run(*args, stdin="".join(named))
    found = pd.read_csv(io.StringIO(text))
    assert list(found) == ["unique_id", "cutoff", "ds", NAME, f"{NAME}-q10", f"{NAME}-q90"]
    assert text == run(*args, stdin="".join(NEW))
    answer = json.loads(run("stream", folder / "model", stdin=NEW[0]))
    assert found["cutoff"][:2].tolist() == [answer["cutoff"]] * 2
    assert found["ds"][:2].tolist() == answer["ds"][:2]
    np.testing.assert_allclose(found[f"{NAME}-q90"][:2], answer[f"{NAME}-q90"][:2])


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (f"{NEW[0]}\n2024-01-03 13:00,x\n", "line 3: .*y must be a finite number, got 'x'"),
        (f"{NEW[0]}2024-01-03 13:00,1e300\n", "line 2: .*y must be a finite number, got '1e300'"),
        (f"{NEW[0]}soon,1\n", "line 2: ds must be a time such as 2024-01-31 12:00, got 'soon'"),
        (f"{NEW[0]}1\n", "line 2: expected 2 cells, got 1"),
        (f"{NEW[0]}03/04/2024,1\n", "line 2: ds must be unambiguous, got '03/04/2024'"),
        (f"{NEW[0]}2024-01-03 13:00Z,1\n", "line 2: .*history has no time zone, but .* UTC"),
        (f"{NEW[0]}2094-01-01,1\n", r"line 2: .*2094-01-01 .* is 613,\d+ steps \(h\) after"),
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


def test_stream_skips_invalid_rows_on_request(folder):
    lines = f"{NEW[0]}soon,1\n2094-01-01,1\n{NEW[1]}"
    args = ["stream", folder / "model", "--on-error", "skip"]
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=lines)
    assert result.stdout == run("stream", folder / "model", stdin="".join(NEW[:2]))
    assert [line.split(":")[1] for line in result.stderr.splitlines()] == [" line 2", " line 3"]
    with pytest.raises(ValueError, match="line 1: the header time, OT names y but not ds"):
        run(*args, stdin="time,OT\n")


def test_stream_continues_from_a_saved_state(folder, tmp_path):
    state = tmp_path / "state"
    args = ["stream", folder / "model", "--state", state]
    with pytest.raises(ValueError, match="line 2: ds must be a time"):
        run(*args, stdin=f"{NEW[0]}soon,1\n")  # the first row is saved
    expected = run("stream", folder / "model", stdin="".join(NEW)).splitlines()
    assert run(*args, stdin="".join(NEW[1:])).splitlines() == expected[1:]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    with pytest.raises(ValueError, match="12:00:00 is before 2024-01-03 14:00:00"):
        run(*args, stdin=NEW[0])
    options = ["--target", "OT", "--out", tmp_path / "other", *SMALL, "--seed", 1]
    run("fit", folder / "data.csv", *options)
    with pytest.raises(ValueError, match="state holds states of another model"):
        run("stream", tmp_path / "other", "--state", state, stdin="")
    state.write_text("nothing")
    with pytest.raises(ValueError, match="state does not hold the states of series"):
        run(*args, stdin="")
    with pytest.raises(ValueError, match="--state must be a file"):
        run(*args[:-1], tmp_path / "none" / "state", stdin="")


GERMAN = "Datum;Filiale;Umsatz\n" + "".join(
    f"01.{i % 12 + 1:02}.{2015 + i // 12};Köln;1.{i * 13 % 90 + 100},5 €\n" for i in range(48)
)


def test_models_fitted_in_python_keep_their_columns(tmp_path):
    frame = table(shop="a").rename(columns={"date": "hour"})[["shop", "hour", "OT"]]
    frame.to_csv(tmp_path / "data.csv", index=False)
    names = dict(id_col="shop", time_col="hour", target_col="OT")
    model = EAForecaster(3, pretrained=None, dim=8, depth=1, epochs=1).fit(frame[:50], **names)
    model.save(tmp_path / "model")
    args = tmp_path / "model", tmp_path / "data.csv"
    assert run("backtest", *args).startswith("unique_id,MAE,RMSE,sMAPE,MASE\na,")
    expected = run("predict", *args)
    assert "10 new steps of 1 series" in run("update", *args)
    found = run("predict", args[0], "--plot", tmp_path / "plot.svg")
    assert found.startswith(f"unique_id,ds,{NAME}\na,2024-01-03 12:00:00,")
    found, expected = (pd.read_csv(io.StringIO(text)) for text in (found, expected))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6)
    assert list(EAForecaster.load(args[0]).predict()) == ["shop", "hour", NAME]


def test_messy_table_is_read_alike_by_all_commands(tmp_path):
    path, model = tmp_path / "data.csv", tmp_path / "model"
    path.write_text("sep=;\n" + GERMAN, encoding="utf-8-sig")
    result = CliRunner().invoke(app, ["fit", str(path), "--out", str(model), *SMALL])
    assert f"columns of {path} that are not used: Filiale\n" in result.stderr
    assert "frequency MS (inferred)" in result.stdout
    assert run("predict", model, path) == run("predict", model)
    plain = pd.DataFrame({"day": pd.date_range("2015-01-01", periods=48, freq="MS")})
    plain["Umsatz"] = [1100.5 + i * 13 % 90 for i in range(48)]
    plain[::-1].to_csv(tmp_path / "plain.csv", index=False)
    assert run("predict", model, tmp_path / "plain.csv", "--time", "day") == run("predict", model)
    rows = "Datum;Umsatz\n01.01.2019;1.100,5 €\n01.02.2019;1.200\n"
    plain_rows = "2019-01-01,1100.5\n2019-02-01,1200.0\n"
    assert run("stream", model, stdin=rows) == run("stream", model, stdin=plain_rows)
    other = ["backtest", model, tmp_path / "plain.csv", "--time", "day", "--windows", 2]
    assert run("backtest", model, path, "--windows", 2) == run(*other)
    path.write_text(rows.replace(";", "|"))
    form = ["--sep", "|", "--decimal", ",", "--thousands", ".", "--date-format", "%d.%m.%Y"]
    text = run("update", model, path, *form, "--encoding", "utf-8", "--out", tmp_path / "new")
    assert "2 new steps of 1 series, up to 2019-02-01 00:00:00" in text
    last = json.loads(run("stream", model, stdin=plain_rows).splitlines()[-1])
    found = pd.read_csv(io.StringIO(run("predict", tmp_path / "new")))
    np.testing.assert_allclose(found[NAME], last[NAME], rtol=1e-6)


def test_stream_reads_covariates_in_the_format_of_fit(tmp_path):
    rows = [
        f"{i % 28 + 1:02}.{i // 28 + 1:02}.2024;{i * 13 % 90 + 100},5;{i % 7},25;{i % 2 == 0}\n"
        for i in range(56)
    ]
    path, model = tmp_path / "data.csv", tmp_path / "model"
    path.write_text("Tag;Umsatz;Regen;Aktion\n" + "".join(rows[:28]))
    options = ["--target", "Umsatz", "--past", "Regen,Aktion", "--freq", "D", "--out", model]
    run("fit", path, *options, *SMALL)
    new = "Tag;Umsatz;Regen;Aktion\n29.01.2024;1.150,5 €;3,75;True\n30.01.2024;140;;\n"
    lines = run("stream", model, stdin=new).splitlines()
    path.write_text(new)
    run("update", model, path)
    found = pd.read_csv(io.StringIO(run("predict", model)))
    np.testing.assert_allclose(found[NAME], json.loads(lines[-1])[NAME], rtol=1e-6)
    with pytest.raises(ValueError, match="line 2: Regen must be a finite number, got 'viel'"):
        run("stream", model, stdin="Tag;Umsatz;Regen;Aktion\n31.01.2024;140;viel;True\n")


def test_order_of_day_and_month_is_remembered(tmp_path):
    path, model = tmp_path / "data.csv", tmp_path / "model"
    months = [f"1/{month}/{year},{month}\n" for year in (2020, 2021) for month in range(1, 13)]
    path.write_text("date,y\n" + "".join(months))
    run("fit", path, "--out", model, *SMALL)
    answer = json.loads(run("stream", model, stdin="01/02/2022,5\n"))
    assert answer["cutoff"] == "2022-02-01 00:00:00"
    path.write_text("date,y\n01/02/2022,1\n01/03/2022,2\n")
    assert run("predict", model, path).splitlines()[1].startswith("y,2022-04-01,")
    answer = json.loads(run("stream", model, "--date-format", "%m/%d/%Y", stdin="2/1/2022,5\n"))
    assert answer["cutoff"] == "2022-02-01 00:00:00"


def test_forecasts_are_in_the_zone_of_the_table(tmp_path):
    path, model = tmp_path / "data.csv", tmp_path / "model"
    times = pd.date_range("2024-03-29", periods=60, freq="h", tz="Europe/Berlin")
    pd.DataFrame({"date": times, "OT": np.arange(60.0)}).to_csv(path, index=False)
    assert "+01:00" in path.read_text() and "+02:00" in path.read_text()
    run("fit", path, "--out", model, *SMALL)
    first = "2024-03-31 13:00:00+02:00"
    for args in (["predict", model], ["predict", model, path, "--plot", tmp_path / "plot.png"]):
        assert run(*args).splitlines()[1].split(",")[1] == first
    answer = json.loads(run("stream", model, stdin="2024-03-31T11:00Z,5\n"))
    assert (answer["cutoff"], answer["ds"][0]) == (first, "2024-03-31 14:00:00+02:00")


def start(folder, *options) -> subprocess.Popen[str]:
    """Start `eattn forecast stream` as a process."""
    code = (
        "import sys; from eattn import cli; from eattn.cli import forecast;"
        " cli.app = forecast.app; sys.exit(cli.main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "stream", str(folder / "model"), *map(str, options)],
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
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_the_state_without_a_traceback(folder, tmp_path, number, code):
    with start(folder, "--state", tmp_path / "state") as process:
        ask(process, NEW[0])
        process.send_signal(number)
        assert process.wait() == code
        assert process.stderr.read() == ("eattn: interrupted\n" if code == 130 else "")
    with pytest.raises(ValueError, match="12:00:00 is already known"):
        run("stream", folder / "model", "--state", tmp_path / "state", stdin=NEW[0])
