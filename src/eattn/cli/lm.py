"""`eattn lm train | generate`: train a language model on text, and generate text."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from eattn.cli.processes import Fsdp

app = typer.Typer(
    help="Train language models on text, and generate text.\n\n"
    "Example: eattn lm train --text book.txt --out model/"
)


@app.command("train")
def train(
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Folder to write.")],
    text: Annotated[
        list[Path] | None,
        typer.Option(
            "--text", metavar="FILE", help="Files or folders; default: Python's standard library."
        ),
    ] = None,
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="More files or folders.", show_default=False),
    ] = None,
    mixer: Annotated[
        str,
        typer.Option(
            "--mixer", metavar="NAME", help="Mixer, such as ea-6+decay, ea-q25r12, sa or la+gate."
        ),
    ] = "ea-6+decay",
    hidden: Annotated[
        int, typer.Option("--hidden", metavar="N", min=1, help="Channels of a token.")
    ] = 256,
    layers: Annotated[
        int, typer.Option("--layers", metavar="N", min=1, help="Number of blocks.")
    ] = 4,
    short_conv: Annotated[
        int,
        typer.Option("--short-conv", metavar="N", min=0, help="Width of the convolution; 0: none."),
    ] = 4,
    positions: Annotated[
        bool,
        typer.Option("--positions", help="Learn positions; limits texts to --length tokens."),
    ] = False,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", metavar="NAME", help="Tokenizer: bytes or bpe.")
    ] = "bytes",
    vocab: Annotated[
        int, typer.Option("--vocab", metavar="N", help="Vocabulary size of a bpe.")
    ] = 4096,
    length: Annotated[
        int, typer.Option("--length", metavar="N", min=1, help="Tokens of a sequence.")
    ] = 256,
    batch_tokens: Annotated[
        int,
        typer.Option(
            "--batch-tokens", metavar="N", min=1, help="Tokens of a step, over all processes."
        ),
    ] = 4096,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="N", min=1, help="Number of steps; default: 400.", show_default=False
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", metavar="N", min=1, help="Passes over the text, instead of steps."
        ),
    ] = None,
    lr: Annotated[float, typer.Option("--lr", metavar="RATE", help="Learning rate.")] = 2e-3,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed.")] = 0,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="Device: auto, cpu, cuda, …")
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            metavar="NAME",
            help="Precision: auto (float32 on a CPU), float32, bfloat16 or float16.",
        ),
    ] = "auto",
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="FOLDER", help="Folder for TensorBoard's files."),
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
    """Train a causal language model and save it with its tokenizer.

    transformers can load the folder. Bits per byte are measured on validation documents. The same
    command resumes an interrupted run; `torchrun --nproc-per-node 2 -m eattn lm train …` trains in
    several processes.

    Example: eattn lm train --text *.txt --out model/ --steps 1000
    """
    from eattn.lm import LMConfig, train_to_dir

    config = LMConfig(
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
        precision=precision,
    )
    result = train_to_dir(
        [*(text or ()), *(more or ())],
        out,
        config,
        force=force,
        fsdp=fsdp,
        sequence_parallel=sequence_parallel,
        device=device,
        tensorboard=tensorboard,
        progress=True,
    )
    if result is None:
        return
    trained, documents = result
    best, count = trained.best, len(documents.validation)
    print(
        f"{out}: {mixer}, {trained.parameters:,} parameters, step {best.step} kept,"
        f" {best.bits_per_byte:.3f} bits per byte on {count} validation"
        f" document{'s' * (count > 1)}"
    )


@app.command("generate")
def generate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a saved model.")],
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="Text to continue; - reads stdin.")
    ],
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=1, help="Maximum number of tokens.")
    ] = 1000,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="VALUE", help="0 takes the most likely token.")
    ] = 1.0,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", metavar="N", help="Sample from the K most likely tokens."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            metavar="PROBABILITY",
            help="Sample from the tokens with total probability P.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, help="Random seed; by default a new one."),
    ] = None,
    endless: Annotated[
        bool, typer.Option("--endless", help="Ignore the end of a text before --tokens.")
    ] = False,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt, too.")] = False,
) -> None:
    """Print the text that follows a prompt while it is generated.

    Memory stays constant except with exact EA, sa and aft, which keep all keys and values. Stops
    at the end of the text, after --tokens, or with Ctrl-C.

    Example: eattn lm generate model/ --prompt "def main" --temperature 0.8 --seed 1
    """
    from eattn.lm import Sampling, load, stream

    sampling = Sampling(temperature, top_k, top_p)
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt:
        raise ValueError("--prompt must not be empty")
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
    except BrokenPipeError:  # the reader is gone; Python must not fail when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        last = "\n"
    finally:  # end the line before the shell's prompt or an error message
        if not last.endswith("\n"):
            _print("\n")


def _print(text: str) -> None:
    """Print at once; characters that the terminal cannot show become question marks."""
    code = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(code, "replace").decode(code))
    sys.stdout.flush()
