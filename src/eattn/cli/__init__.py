"""The command line: its entry, its errors, and the commands that have no group of their own."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

import eattn
from eattn.cli import classify, data, diagnose, export, forecast, lm

app = typer.Typer(
    name="eattn",
    help="Element-wise attention: linear in the sequence, constant-size state.\n\n"
    "Example: eattn forecast fit sales.csv --out model/ --horizon 12",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (forecast, classify, lm):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])
app.command("diagnose")(diagnose.diagnose)
app.command("export")(export.export)
app.add_typer(data.app, name="data")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of `eattn`; return its exit code."""
    return run_app(app, "eattn", argv)


def run_app(app: typer.Typer, name: str, argv: Sequence[str] | None = None) -> int:
    """Run one command; any error becomes one line on stderr and a non-zero exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args  # also after the command, where people remember it
    args = [arg for arg in args if arg != "--debug"] or ["--help"]
    try:
        code = app(args, prog_name=name, standalone_mode=False) or 0
        return _fail("interrupted", code=130) if code == 130 else code  # typer took the Ctrl-C
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", code=130)
    except Exception as error:
        if debug:
            raise
        return _fail(_reason(error), code=getattr(error, "exit_code", 1))


def _reason(error: Exception) -> str:
    """The first line of what the user should know; a bug also says how to see more."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.strerror}: {error.filename}"
    line = message.strip().partition("\n")[0]
    if isinstance(error, (ValueError, OSError, ImportError)) or hasattr(error, "format_message"):
        return line or type(error).__name__
    return f"{type(error).__name__}: {line} (--debug shows where)"


def _fail(reason: str, *, code: int) -> int:
    print(f"eattn: {reason}", file=sys.stderr)
    return code


def _print_version(wanted: bool) -> None:
    if wanted:
        print(eattn.__version__)
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """Options of every command; `main` has already acted on --debug."""


@app.command()
def info() -> None:
    """Print versions, processor, threads, and each backend with the reason when it cannot run.

    Example: eattn info
    """
    from eattn.info import describe

    lines = describe()
    width = max(map(len, lines))
    for name, value in lines.items():
        Console(highlight=False).print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)
