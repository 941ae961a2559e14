"""The script beside exported graphs: it needs what runs them, and nothing of eattn.

Put together from a part that knows the format and a part that knows the model. What goes between
them are lists of Python, and arrays as far as numpy and torch have them alike.
"""

TITLES = {
    "classifier": "Labels for series",
    "forecaster": "The next values of a series",
    "language model": "The tokens after a prompt",
}
PACKAGES = {"onnx": "onnxruntime and numpy", "torch": "torch"}
IMPORTS = {"onnx": "import numpy as np\nimport onnxruntime\n", "torch": "import torch\n"}
STANDARD = {
    "classifier": "import json\nimport math\nfrom pathlib import Path\n",
    "forecaster": "import json\nimport math\nfrom datetime import datetime\n"
    "from pathlib import Path\n",
    "language model": "import json\nfrom pathlib import Path\n",
}


def script(kind: str, format: str, *, recurrent: bool) -> str:
    """example.py; `recurrent` where the graph of a step is there."""
    title = f'"""{TITLES[kind]}, with {PACKAGES[format]} alone: python example.py"""\n\n'
    start = f"{title}{STANDARD[kind]}\n{IMPORTS[format]}{ABOUT}"
    return start + OPENED[format] + BODIES[kind, recurrent or kind == "classifier"]


ABOUT = """
HERE = Path(__file__).parent
ABOUT = json.loads((HERE / "export.json").read_text(encoding="utf-8"))
"""

OPENED = {
    "onnx": '''

def opened(name):
    """The graph `name` as a function: arrays by name -> arrays by name."""
    session = onnxruntime.InferenceSession(HERE / ABOUT["graphs"][name]["file"])
    outputs = [port["name"] for port in ABOUT["graphs"][name]["outputs"]]
    return lambda inputs: dict(zip(outputs, session.run(outputs, inputs)))


def array(values, dtype):
    return np.array(values, dtype=dtype)
''',
    "torch": '''

def opened(name):
    """The graph `name` as a function: tensors by name -> tensors by name."""
    graph = ABOUT["graphs"][name]
    program = torch.export.load(HERE / graph["file"]).module()
    outputs = [port["name"] for port in graph["outputs"]]

    def run(inputs):
        state = {p["name"]: inputs[p["name"]] for p in graph["inputs"] if p["state"]}
        first, *others = [inputs[p["name"]] for p in graph["inputs"] if not p["state"]]
        found = program(first, *([state] if state else []), *others)
        y, after = found if len(outputs) > 1 else (found, {})
        return dict(zip(outputs, [y, *after.values()]))

    return run


def array(values, dtype):
    return torch.tensor(values, dtype=getattr(torch, dtype))
''',
}

CLASSIFIER = '''

def scaled(series):
    """A series [channels][length] with NaN for missing values -> samples for the graph."""
    samples = []
    for values in zip(*series):
        row = []
        for value, mean, std in zip(values, ABOUT["mean"], ABOUT["std"]):
            z = 0.0 if math.isnan(value) else (value - mean) / std
            row.append(min(max(z, -ABOUT["limit"]), ABOUT["limit"]))
        if ABOUT["flags"]:  # 1 where a value was observed
            row += [0.0 if math.isnan(value) else 1.0 for value in values]
        samples.append(row)
    return samples


def probabilities(many):
    """Of each class, for each of many series of up to ABOUT["longest"] samples."""
    rows = [scaled(series) for series in many]
    length = max(ABOUT["graphs"]["sequence"]["shortest"], *map(len, rows))
    padding = [0.0] * len(rows[0][0])
    x = [row + [padding] * (length - len(row)) for row in rows]
    key_mask = [[i < len(row) for i in range(length)] for row in rows]
    inputs = {"x": array(x, "float32"), "key_mask": array(key_mask, "bool")}
    found = []
    for logits in opened("sequence")(inputs)["logits"].tolist():
        weights = [math.exp(logit - max(logits)) for logit in logits]
        found.append([weight / sum(weights) for weight in weights])
    return found


if __name__ == "__main__":
    # Waves of two lengths around the mean of each channel: put series of your own here.
    sizes = [ABOUT["longest"], max(1, ABOUT["longest"] // 2)]
    channels = list(zip(ABOUT["mean"], ABOUT["std"]))
    many = [[[m + s * math.sin(i / 3) for i in range(n)] for m, s in channels] for n in sizes]
    for shares in probabilities(many):
        best = max(range(len(shares)), key=shares.__getitem__)
        print(ABOUT["classes"][best], *(f"{share:.6f}" for share in shares))
'''

FORECASTER = '''

def read(values, times):
    """One series as the inputs of the sequence."""
    inputs = {
        "x": array([[[value] for value in values]], "float32"),
        "key_mask": array([[True] * len(values)], "bool"),
    }
    if ABOUT["calendar"]:
        inputs["calendar"] = array([calendar(times[: len(values)])], "int64")
    return inputs


def calendar(times):
    """What the model reads of ISO times; Monday is 0."""
    rows = []
    for time in map(datetime.fromisoformat, times):
        known = {"weekday": time.weekday()}
        rows.append([known.get(name, getattr(time, name)) for name in ABOUT["calendar"]])
    return rows


def forecast(values, times, series):
    """What follows the values, at the times that are left; both are of one of the series."""
    mean, std = series["mean"], series["std"]
    found = go_on([(value - mean) / std for value in values], times)
    return [value * std + mean for value in found]


if __name__ == "__main__":
    # A wave on the scale of the first series: put values and times of your own here.
    series, known, times = ABOUT["series"][0], ABOUT["example"]["values"], ABOUT["example"]["times"]
    wave = [series["mean"] + series["std"] * math.sin(i / 3) for i in range(known)]
    for time, value in zip(times[known:], forecast(wave, times, series)):
        print(time, value)
'''

FORECASTER_STEPS = '''

def go_on(values, times):
    """All values at once, then one step for each forecast: the state has one size for ever."""
    out, step = opened("sequence")(read(values, times)), opened("step")
    found = [out["expected"][0, -1, 0].item()]
    for i in range(len(values), len(times) - 1):
        inputs = {name[5:]: x for name, x in out.items() if name.startswith("next.")}
        inputs["x"] = array([[found[-1]]], "float32")
        if ABOUT["calendar"]:
            inputs["calendar"] = array(calendar([times[i]]), "int64")
        out = step(inputs)
        found.append(out["expected"][0, 0].item())
    return found
'''

FORECASTER_WHOLE = '''

def go_on(values, times):
    """All values again for each forecast: this model has no state of one size."""
    sequence, known = opened("sequence"), list(values)
    while len(known) < len(times):
        known.append(sequence(read(known, times))["expected"][0, -1, 0].item())
    return known[len(values) :]
'''

LANGUAGE = '''

def read(ids):
    """One text as the inputs of the sequence."""
    return {"input_ids": array([ids], "int64"), "attention_mask": array([[1] * len(ids)], "int64")}


def text(ids):
    """What tokens say if they spell bytes, as tokens.json has it; else their numbers."""
    if not (HERE / "tokens.json").exists():
        return " ".join(map(str, ids))
    tokens = json.loads((HERE / "tokens.json").read_text(encoding="utf-8"))
    spelled = "".join(tokens[i] for i in ids if i < len(tokens))  # a character for each byte
    return spelled.encode("latin-1").decode("utf-8", "replace")


if __name__ == "__main__":
    # Put tokens of your own here: tokenizer.json, if it is here, is read by `tokenizers`.
    prompt = ABOUT["example"]["input_ids"]
    print(text(prompt + generate(prompt, ABOUT["example"]["tokens"])))
'''

LANGUAGE_STEPS = '''

def generate(prompt, tokens):
    """The prompt at once, then one step for each token: the state has one size for ever."""
    out, step = opened("sequence")(read(prompt)), opened("step")
    found = [out["logits"][0, -1].argmax().item()]  # greedy
    while len(found) < tokens and found[-1] not in ABOUT["eos_token_ids"]:
        inputs = {name[5:]: x for name, x in out.items() if name.startswith("next.")}
        inputs["input_ids"] = array([found[-1]], "int64")
        out = step(inputs)
        found.append(out["logits"][0].argmax().item())
    return found
'''

LANGUAGE_WHOLE = '''

def generate(prompt, tokens):
    """All tokens again for each one: this model has no state of one size."""
    sequence, found = opened("sequence"), []
    while len(found) < tokens and (not found or found[-1] not in ABOUT["eos_token_ids"]):
        logits = sequence(read(prompt + found))["logits"]
        found.append(logits[0, -1].argmax().item())  # greedy
    return found
'''

BODIES = {
    ("classifier", True): CLASSIFIER,
    ("forecaster", True): FORECASTER_STEPS + FORECASTER,
    ("forecaster", False): FORECASTER_WHOLE + FORECASTER,
    ("language model", True): LANGUAGE_STEPS + LANGUAGE,
    ("language model", False): LANGUAGE_WHOLE + LANGUAGE,
}
