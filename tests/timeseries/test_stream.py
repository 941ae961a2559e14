"""Streams of text rows: JSON and CSV answers, headers, anomalies, covariates and broken rows."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from forecaster_helpers import NAME, long, tiny
from numpy.testing import assert_allclose

from eattn.timeseries import EAForecaster
from eattn.timeseries.stream import RowFormat, stream

HISTORY = {"b": 60, "a": 45}
LONGER = {"b": 66, "a": 51}
EXOG = dict(hist_exog_list=["load", "kind"], stat_exog_list=["region"])


@pytest.fixture(scope="module")
def fitted() -> EAForecaster:
    return tiny(quantiles=(0.1, 0.9)).fit(long(HISTORY))


@pytest.fixture
def model(fitted) -> EAForecaster:
    """Return a copy of `fitted`, which tests may update."""
    return fitted.with_history(long(HISTORY))


def new_rows() -> pd.DataFrame:
    """Return the rows after the history, in order of time."""
    longer = long(LONGER)
    known = longer["unique_id"].map(HISTORY)
    new = longer[longer.groupby("unique_id").cumcount() >= known]
    return new.sort_values("ds", kind="stable").reset_index(drop=True)


def lines_of(rows: pd.DataFrame, columns=("unique_id", "ds", "y")) -> list[str]:
    return [",".join(map(str, row)) + "\n" for row in rows[list(columns)].itertuples(index=False)]


def answers(model, lines, **options) -> list[dict]:
    options = dict(horizon=None, form="json") | options
    return [loads(answer) for answer in stream(model, lines, **options)]


def loads(text: str) -> dict:
    """Read JSON, which has no NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_json_answers_equal_update_and_predict(model, fitted):
    other, rows = fitted.with_history(long(HISTORY)), new_rows()
    for answer, (_, row) in zip(answers(model, lines_of(rows)), rows.iterrows(), strict=True):
        table = other.update(row.to_frame().T).predict()
        expected = table[table["unique_id"] == row["unique_id"]]
        assert list(answer) == ["unique_id", "cutoff", "ds", NAME, f"{NAME}-q10", f"{NAME}-q90"]
        assert (answer["unique_id"], answer["cutoff"]) == (row["unique_id"], str(row["ds"]))
        assert answer["ds"] == expected["ds"].astype(str).tolist()
        for name in list(answer)[3:]:
            assert_allclose(answer[name], expected[name], atol=1e-9)


def test_csv_answers_equal_json_answers(model, fitted):
    lines = lines_of(new_rows())[:3]
    expected = answers(fitted.with_history(long(HISTORY)), lines, horizon=2)
    text = "\n".join(stream(model, lines, horizon=2, form="csv"))
    table = list(csv.DictReader(io.StringIO(text)))
    assert len(table) == 3 * 2
    for number, row in enumerate(table):
        answer = expected[number // 2]
        assert (row["unique_id"], row["cutoff"]) == (answer["unique_id"], answer["cutoff"])
        assert row["ds"] == answer["ds"][number % 2]
        assert float(row[NAME]) == answer[NAME][number % 2]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_anomalies_are_the_scores_of_update(model, fitted, form):
    rows = new_rows()
    rows.loc[4, "y"] += 40
    rows.loc[6, "y"] = np.nan
    expected = fitted.with_history(long(HISTORY)).update(rows, return_scores=True)
    expected = expected.set_index(["unique_id", "ds"])["score"]
    found = list(stream(model, lines_of(rows), horizon=None, form=form, anomalies=True))
    if form == "csv":
        table = pd.read_csv(io.StringIO("\n".join(found)))
    else:
        table = pd.DataFrame([loads(each) for each in found])
    assert list(table) == ["unique_id", "ds", "y", "score"]
    assert_allclose(table["y"].astype(float), rows["y"])
    keys = zip(table["unique_id"], pd.to_datetime(table["ds"]), strict=True)
    assert_allclose(table["score"], [expected[key] for key in keys], atol=1e-9)
    assert table["score"].idxmax() == 4 and table["score"][6] == 0


def test_missing_values_are_empty_cells(model):
    first, *_ = new_rows().itertuples(index=False)
    for cell in ("", "NA", "null", "NaN"):
        [answer] = answers(model, [f"{first.unique_id},{first.ds},{cell}"], anomalies=True)
        assert answer["score"] == 0
        first = first._replace(ds=first.ds + pd.Timedelta("1h"))
    assert model.states_[first.unique_id].track.known == HISTORY[first.unique_id]


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("ds,y,unique_id", ("ds", "y", "unique_id")),
        ("\ufeffunique_id,ds,y", ("unique_id", "ds", "y")),
        ("y,unique_id,ds", ("y", "unique_id", "ds")),
    ],
)
def test_header_names_the_columns(model, fitted, header, columns):
    rows = new_rows()
    expected = answers(fitted.with_history(long(HISTORY)), lines_of(rows))
    assert answers(model, [header, "\n", *lines_of(rows, columns)]) == expected


def test_header_may_have_the_names_of_the_training_file(model, fitted):
    model.columns_ = {"unique_id": "shop", "ds": "date", "y": "sales"}
    rows = new_rows()
    expected = answers(fitted.with_history(long(HISTORY)), lines_of(rows))
    assert answers(model, ["shop,date,sales", *lines_of(rows)]) == expected
    with pytest.raises(ValueError, match="names ds but not y; name the column 'sales'"):
        answers(model, ["shop,date,price", *lines_of(rows)])


def test_unknown_columns_are_named(model):
    [row] = lines_of(new_rows()[:1])
    with pytest.warns(UserWarning, match="columns that are not used: price"):
        [answer] = answers(model, ["unique_id,ds,y,price", f"{row.strip()},5"])
    assert answer["unique_id"] == new_rows()["unique_id"][0]


def test_single_series_needs_no_id():
    model = tiny(epochs=1).fit(np.sin(np.arange(50)))
    found = answers(model, ["50,0.5", "51,0.25", "54,1"], horizon=1)
    assert [answer["cutoff"] for answer in found] == [50, 51, 54]
    assert [answer["ds"] for answer in found] == [[51], [52], [55]]
    assert model.states_["y"].count == 55


def test_format_of_rows_may_be_given(model):
    first = new_rows().iloc[0]
    text = f"{first['unique_id']};{first['ds']:%d.%m.%Y %H:%M};1.234,5"
    rows = RowFormat(sep=";", decimal=",", thousands=".", date_format="%d.%m.%Y %H:%M")
    [answer] = answers(model, [text], rows=rows, anomalies=True)
    assert (answer["y"], answer["ds"]) == (1234.5, str(first["ds"]))


BROKEN = [
    ("a,2024-01-02 21:00", "line 2: expected 3 cells, got 2"),
    ("c,2024-01-02 21:00,1", "line 2: unknown series 'c'"),
    ("a,2024-01-02 20:00,1", "line 2: series 'a': 2024-01-02 20:00:00 is already known"),
    ("a,2024-01-01,1", "is before 2024-01-02 20:00:00, the last known time"),
    ("a,2024-01-02 21:30,1", "is not a whole number of steps"),
    ("a,soon,1", "line 2: ds must be a time such as .* got 'soon'"),
    ("a,2024-01-02 21:00,x", "line 2: y must be a finite number, got 'x'"),
    ("a,2024-01-02 21:00,inf", "line 2: y must be a finite number, got 'inf'"),
    ("a,2024-01-02 21:00,1e200", "line 2: y must be a finite number"),
]


@pytest.mark.parametrize(("line", "reason"), BROKEN, ids=lambda x: "" if "line" in x else x)
def test_broken_rows_raise_with_their_line(model, line, reason):
    before = model.states_["a"]
    with pytest.raises(ValueError, match=reason):
        answers(model, ["unique_id,ds,y", line])
    assert model.states_["a"] is before


def test_broken_rows_are_skipped_on_request(model, fitted):
    good, skipped = lines_of(new_rows()), []
    mixed = [line for pair in zip(good, [b for b, _ in BROKEN], strict=False) for line in pair]
    found = answers(model, mixed, skip=skipped.append)
    expected = answers(fitted.with_history(long(HISTORY)), good[: len(BROKEN)])
    assert found == expected
    assert len(skipped) == len(BROKEN) and skipped[0].startswith("line 2: expected 3 cells")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("unique_id,ds,value", "names ds but not y; name the column 'y'"),
        ("unique_id,time,y", "names y but not ds"),
        ("1,2,3,4", "rows must be ds,y or unique_id,ds,y, got 4 cells"),
    ],
)
def test_wrong_header_raises_even_if_rows_are_skipped(model, header, reason):
    with pytest.raises(ValueError, match=reason):
        answers(model, [header, *lines_of(new_rows())], skip=print)


def test_unknown_format_raises(model):
    with pytest.raises(ValueError, match="format must be one of json, csv, got 'xml'"):
        next(stream(model, [], horizon=None, form="xml"))


# ---- covariates ----


def with_covariates(frame: pd.DataFrame) -> pd.DataFrame:
    hour = (frame["ds"] - pd.Timestamp("2024-01-01")) // pd.Timedelta("1h")
    kind = np.where(hour % 3, "x", "y")
    return frame.assign(load=hour % 5, kind=kind, region=frame["unique_id"])


@pytest.fixture(scope="module")
def exog() -> EAForecaster:
    return tiny(**EXOG).fit(with_covariates(long(HISTORY)))


def test_header_names_the_covariates(exog):
    rows = with_covariates(new_rows())
    model = exog.with_history(with_covariates(long(HISTORY)))
    other = exog.with_history(with_covariates(long(HISTORY)))
    columns = ["ds", "kind", "y", "unique_id", "load"]
    found = answers(model, [",".join(columns), *lines_of(rows, columns)])
    other.update(rows.drop(columns="region"))
    expected = other.predict().set_index("unique_id")
    for name, answer in {answer["unique_id"]: answer for answer in found}.items():  # the last ones
        assert_allclose(answer[NAME], expected.loc[name, NAME], atol=1e-9)
        assert_allclose(model.states_[name].hist, other.states_[name].hist)


def test_empty_covariates_repeat_the_last_value(exog):
    model = exog.with_history(with_covariates(long(HISTORY)))
    before = model.states_["a"].hist
    answers(model, ["unique_id,ds,y,load,kind", "a,2024-01-02 21:00,1,,"])
    assert_allclose(model.states_["a"].hist, before)


def test_missing_covariates_raise(exog):
    model = exog.with_history(with_covariates(long(HISTORY)))
    with pytest.raises(ValueError, match="a header must name the columns, among them load, kind"):
        answers(model, ["a,2024-01-02 21:00,1"])
    with pytest.raises(ValueError, match="lacks the column 'kind'"):
        answers(model, ["unique_id,ds,y,load", "a,2024-01-02 21:00,1,2"])
    with pytest.raises(ValueError, match=r"line 2: .*load must be a finite number, got 'x'"):
        answers(model, ["unique_id,ds,y,load,kind", "a,2024-01-02 21:00,1,x,x"])


def test_future_covariates_allow_anomalies_only():
    history = long(HISTORY).assign(temp=np.arange(105) % 7)
    model = tiny(futr_exog_list=["temp"], epochs=1).fit(history)
    row = ["unique_id,ds,y,temp", "a,2024-01-02 21:00,1,2"]
    with pytest.raises(ValueError, match="no future values of temp: use predict, or --anomalies"):
        answers(model, row)
    [answer] = answers(model, row, anomalies=True)
    assert 0 <= answer["score"] <= 1


def test_holidays_are_known_in_a_stream():
    history = long({"a": 60})
    model = tiny(holidays="DE", epochs=1).fit(history)
    [answer] = answers(model, ["2024-01-03 12:00,1"])
    expected = model.predict()
    assert_allclose(answer[NAME], expected[NAME], atol=1e-9)
