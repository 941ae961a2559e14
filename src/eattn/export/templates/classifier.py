"""Classify series with the exported model: python example.py"""

import math

from graphs import ABOUT, array, open_graph


def scale(series):
    """Scale a series [channels][length] with NaN for missing values; return [length][inputs]."""
    samples = []
    for values in zip(*series, strict=True):
        row = []
        for value, mean, std in zip(values, ABOUT["mean"], ABOUT["std"], strict=True):
            z = 0.0 if math.isnan(value) else (value - mean) / std
            row.append(min(max(z, -ABOUT["limit"]), ABOUT["limit"]))
        if ABOUT["flags"]:  # 1 where a value was observed
            row += [0.0 if math.isnan(value) else 1.0 for value in values]
        samples.append(row)
    return samples


def probabilities(many):
    """Return {class: probability} for each series of 1 to ABOUT["longest"] time points."""
    rows = [scale(series) for series in many]
    length = max(map(len, rows))
    padding = [0.0] * len(rows[0][0])
    x = [row + [padding] * (length - len(row)) for row in rows]
    key_mask = [[i < len(row) for i in range(length)] for row in rows]
    inputs = {"x": array(x, "float32"), "key_mask": array(key_mask, "bool")}
    found = []
    for logits in open_graph("sequence")(inputs)["logits"].tolist():
        weights = [math.exp(logit - max(logits)) for logit in logits]
        shares = [weight / sum(weights) for weight in weights]
        found.append(dict(zip(ABOUT["classes"], shares, strict=True)))
    return found


if __name__ == "__main__":
    # Example: sine waves of two lengths. Replace them with your own series.
    sizes = [ABOUT["longest"], max(1, ABOUT["longest"] // 2)]
    channels = list(zip(ABOUT["mean"], ABOUT["std"], strict=True))
    waves = [[[m + s * math.sin(i / 3) for i in range(n)] for m, s in channels] for n in sizes]
    for shares in probabilities(waves):
        print(max(shares, key=shares.get), {name: round(p, 6) for name, p in shares.items()})
