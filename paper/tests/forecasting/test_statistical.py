"""Statistical models: a limit of time that holds, and failures that are counted."""

import numpy as np
import pytest
from forecasting_helpers import wave

pytest.importorskip("statsforecast", reason='needs pip install "eattn[study]"')

from paper.forecasting.statistical import LAST, Worker, forecast_all


@pytest.fixture(scope="module")
def worker():
    with Worker() as made:
        yield made


def test_forecasts_are_those_of_statsforecast(worker):
    from statsforecast.models import AutoETS

    y = wave(60, 12)
    found = forecast_all(worker, "AutoETS", [y, y[:40]], 5, 12)
    assert found.failures == 0 and found.seconds > 0
    direct = AutoETS(season_length=12).forecast(y=y, h=5)["mean"]
    assert found.values[0] == pytest.approx(direct)
    assert found.values[1] != pytest.approx(direct)


def test_models_see_the_last_values_without_gaps(worker):
    y = np.concatenate([np.full(100, np.nan), wave(LAST, 4)])
    y[-1] = np.nan
    found = forecast_all(worker, "SeasonalNaive", [y], 5, 4)
    assert found.failures == 0
    assert found.values[0].tolist() == [*y[-4:-1], y[-2], y[-4]]


def test_failures_are_counted_and_replaced_by_the_last_season(worker):
    y = np.arange(10.0)
    found = forecast_all(worker, "NoSuchModel", [y, y[:2]], 5, 3)
    assert found.failures == 2
    assert [values.tolist() for values in found.values] == [[7, 8, 9, 7, 8], [0, 1, 0, 1, 0]]


def test_a_model_that_takes_too_long_is_killed():
    with Worker(0.2) as worker:
        first = worker.process.pid
        assert worker.forecast("AutoARIMA", wave(500, 48), 24, 48) is None
        assert worker.process.pid != first
        assert worker.forecast("SeasonalNaive", np.arange(4.0), 2, 2).tolist() == [2, 3]
    assert not worker.process.is_alive()
