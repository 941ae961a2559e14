"""`eattn lm train | generate`: a language model from text, and text from a language model."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from eattn.cli.processes import Fsdp

app = typer.Typer(
    help="Learn a language model from text, and let it write.\n\n"
    "Example: eattn lm train --text book.txt --out model/"
)


@app.command("train")
def train(
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Write the model here.")],
    text: Annotated[
        list[Path] | None,
        typer.Option(
            "--text", metavar="FILE…", help="Or folders; by default Python's standard library."
        ),
    ] = None,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]…", help="More text.", show_default=False)
    ] = None,
    mixer: Annotated[
        str, typer.Option("--mixer", help="ea-2, ea-6, ea, ea-q17, sa, or any other.")
    ] = "ea-6",
    hidden: Annotated[int, typer.Option("--hidden", min=1, help="Channels of a token.")] = 256,
    layers: Annotated[int, typer.Option("--layers", min=1, help="Blocks.")] = 4,
    short_conv: Annotated[
        int, typer.Option("--short-conv", min=0, help="Width of the convolution; 0: none.")
    ] = 4,
    positions: Annotated[
        bool, typer.Option("--positions", help="Learned ones: no text beyond --length.")
    ] = False,
    tokenizer: Annotated[str, typer.Option("--tokenizer", help="bytes or bpe.")] = "bytes",
    vocab: Annotated[int, typer.Option("--vocab", help="Tokens of a bpe.")] = 4096,
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of a sequence.")] = 256,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", min=1, help="Tokens of a step, of all processes.")
    ] = 4096,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="By default 400.", show_default=False)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Passes over the text, not steps.")
    ] = None,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 2e-3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all random numbers.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, …")] = "auto",
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="FOLDER", help="Write its files there.")
    ] = None,
    fsdp: Fsdp = False,
    sequence_parallel: Annotated[
        int,
        typer.Option(
            "--sequence-parallel",
            metavar="N",
            min=1,
            help="Under torchrun: number of processes that share a sequence.",
        ),
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a model.")] = False,
) -> None:
    """Learn a causal language model, and write it as transformers does, with its tokenizer.

    Some documents are held out; bits per byte are those on them. The same command goes on after it
    was cut off, and `torchrun --nproc-per-node 2 -m eattn lm train …` shares it between processes.
    Example: eattn lm train --text *.txt --out model/ --steps 1000
    """
    from eattn.lm.run import run
    from eattn.lm.settings import Settings

    settings = Settings(
        mixer=mixer,
        hidden=hidden,
        layers=layers,
        short_conv=short_conv or None,
        positions=positions,
        tokenizer=tokenizer,
        vocab=vocab,
        length=length,
        batch_tokens=batch_tokens,
        steps=400 if steps is None and epochs is None else steps,
        epochs=epochs,
        lr=lr,
        seed=seed,
    )
    files = [*(text or ()), *(more or ())]
    places: dict[str, Any] = dict(device=device, tensorboard=tensorboard)
    shares: dict[str, Any] = dict(fsdp=fsdp, sequence_parallel=sequence_parallel)
    made = run(files, out, settings, force=force, progress=True, **places, **shares)
    if made is None:
        return
    learnt, read = made
    size, best, count = learnt.parameters, learnt.best, len(read.held_out)
    print(
        f"{out}: {mixer}, {size:,} parameters, step {best.step} kept, {best.bits_per_byte:.3f} bits"
        f" per byte on {count} held-out document{'s' * (count > 1)}"
    )


@app.command("generate")
def generate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A folder with a model.")],
    prompt: Annotated[str, typer.Option("--prompt", help="To go on from; - reads stdin.")],
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="At most.")] = 1000,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 takes the likeliest token.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Of the so many likeliest tokens only.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Of those with so much probability only.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="The same one, the same text.")
    ] = None,
    endless: Annotated[
        bool, typer.Option("--endless", help="Never end before --tokens are there.")
    ] = False,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt, too.")] = False,
) -> None:
    """Print the text that follows a prompt, as it comes.

    Memory stays constant, but with exact EA, sa and aft, which keep all keys and values. It ends
    where the model ends the text, after --tokens, or with Ctrl-C.
    Example: eattn lm generate model/ --prompt "def main" --temperature 0.8 --seed 1
    """
    from eattn.lm import Sampling, load, stream

    sampling = Sampling(temperature, top_k, top_p)
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt:
        raise ValueError("--prompt must not be empty: the model goes on from it")
    loaded, tokenizer = load(model)
    parts = stream(
        loaded, tokenizer, prompt, tokens=tokens, sampling=sampling, seed=seed, endless=endless
    )
    last = "\n"
    try:
        for last in [prompt] if echo else []:
            _print(last)
        for last in parts:
            _print(last)
    except BrokenPipeError:  # nobody reads on; nor shall Python try to, when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        last = "\n"
    finally:  # what follows, a prompt of the shell or why it ended, begins a line
        if not last.endswith("\n"):
            _print("\n")


def _print(text: str) -> None:
    """At once, and whatever the terminal cannot show as a question mark."""
    code = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(code, "replace").decode(code))
    sys.stdout.flush()
