"""Continue a prompt with the exported model: python example.py"""

import json

from graphs import ABOUT, HERE, array, open_graph


def generate_steps(prompt, count):
    """Read the prompt at once, then take one step per token."""
    out, step = open_graph("sequence")(sequence_inputs(prompt)), open_graph("step")
    found = [out["logits"][0, -1].argmax().item()]  # greedy
    while len(found) < count and found[-1] not in ABOUT["eos_token_ids"]:
        inputs = {name[5:]: x for name, x in out.items() if name.startswith("next.")}
        inputs["input_ids"] = array([found[-1]], "int64")
        out = step(inputs)
        found.append(out["logits"][0].argmax().item())
    return found


def generate_whole(prompt, count):
    """Read all tokens again for each new token, because this model has no step."""
    sequence, found = open_graph("sequence"), []
    while len(found) < count and (not found or found[-1] not in ABOUT["eos_token_ids"]):
        logits = sequence(sequence_inputs(prompt + found))["logits"]
        found.append(logits[0, -1].argmax().item())  # greedy
    return found


def sequence_inputs(ids):
    """Return the inputs of the sequence graph for one text."""
    return {"input_ids": array([ids], "int64"), "attention_mask": array([[1] * len(ids)], "int64")}


def text(ids):
    """Decode tokens with the bytes in tokens.json; without that file, list their ids."""
    if not (HERE / "tokens.json").exists():
        return " ".join(map(str, ids))
    tokens = json.loads((HERE / "tokens.json").read_text(encoding="utf-8"))
    spelled = "".join(tokens[i] for i in ids if i < len(tokens))  # one character per byte
    return spelled.encode("latin-1").decode("utf-8", "replace")


if __name__ == "__main__":
    # Replace the prompt with your own tokens, which `tokenizers` and tokenizer.json encode.
    prompt = ABOUT["example"]["input_ids"]
    generate = generate_steps if "step" in ABOUT["graphs"] else generate_whole
    print(text(prompt + generate(prompt, ABOUT["example"]["tokens"])))
