"""Plan of the forecasting study: its parts, and what each of them measures."""

from dataclasses import dataclass
from typing import Any

from paper.harness.chart import BLACK, BLUE, GREEN, GREY, PURPLE, SKY, VERMILLION, Look

SPLITS = ("test", "dev")
PARTS = ("gift", "classics", "covariates", "anomalies", "mixers", "coverage")
OURS = "EAForecaster"  # trained on each task
FINE_TUNED = "EAForecaster fine-tuned"  # pretrained weights, trained further
ZERO_SHOT = "EAForecaster zero-shot"  # pretrained weights
OWN = (OURS, FINE_TUNED, ZERO_SHOT)
MIXER = "ea-6+decay"  # of our models
STATISTICAL = ("SeasonalNaive", "AutoTheta", "AutoETS", "AutoARIMA")
TREES = "LightGBM"
LOOKS = {
    OURS: Look(BLUE),
    FINE_TUNED: Look(BLUE, shape="square"),
    ZERO_SHOT: Look(BLUE, shape="diamond"),
    "PatchTST": Look(PURPLE, shape="diamond", hollow=True),
    "AutoARIMA": Look(VERMILLION, shape="triangle-up"),
    "AutoETS": Look(GREEN, shape="square"),
    "AutoTheta": Look(SKY, shape="square"),
    TREES: Look(BLACK, shape="diamond"),
    "SeasonalNaive": Look(GREY),
}


@dataclass(frozen=True)
class Plan:
    """Parts of the study, and the models, datasets and settings in them.

    The split `dev` is for development: it leaves out the values that `test` forecasts, and
    forecasts the values before them.
    """

    parts: tuple[str, ...] = PARTS
    models: tuple[str, ...] = (*OWN, TREES, *STATISTICAL)  # of gift, classics and covariates
    tasks: tuple[str, ...] = ()  # of gift; all by default
    mixers: tuple[str, ...] = ("sa", "gru")  # compared with the default of EAForecaster
    seeds: int = 1  # of the mixers; other parts have one seed
    sets: tuple[str, ...] = ("m1", "m3", "tourism", "classics")
    covariates: tuple[str, ...] = ("gefcom2012_load", "vic_elec")
    detectors: tuple[str, ...] = (OURS, "WindowedGaussian")
    # Of the detector: parameters of EAForecaster, with `+` between them.
    settings: tuple[str, ...] = ("default", "horizon=1", "season_length=1")
    streams: tuple[str, ...] = ("ett1/15T", "ett1/H", "ett2/15T", "ett2/H")
    rows: int = 2000  # of a stream
    split: str = "test"
    series: int = 0  # first series of a dataset, and files of NAB; 0 for all
    options: tuple[str, ...] = ()  # parameters of EAForecaster, such as lr=1e-3
    jobs: int | None = None  # runs side by side; one per core by default

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {self.split!r}")
        for part in self.parts:
            if part not in PARTS:
                raise ValueError(f"parts must be of {', '.join(PARTS)}, got {part!r}")
        for model in self.models:
            if model not in Plan.models:
                raise ValueError(f"models must be of {', '.join(Plan.models)}, got {model!r}")

    def common(self, model: str = OURS) -> dict[str, Any]:
        """Return the fields of a key that all parts have; None for those at their default."""
        return {
            "model": model,
            "split": None if self.split == "test" else self.split,
            "first": self.series or None,
            "options": self.options if self.options and model in OWN else None,
        }
