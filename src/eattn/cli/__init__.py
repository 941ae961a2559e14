"""The command line `eattn`: entry point, error messages and the command `info`."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import eattn
from eattn.cli import classify, data, diagnose, export, forecast, lm

COMMANDS = ("forecast", "classify", "lm", "diagnose", "export", "data", "info")


class _Ordered(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)  # Typer lists plain commands before groups


app = typer.Typer(
    name="eattn",
    cls=_Ordered,
    help="Element-wise attention: linear in the sequence, constant-size state.\n\n"
    "Example: eattn forecast fit sales.csv --out model/ --horizon 12",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(forecast.app, name="forecast")
app.add_typer(classify.app, name="classify")
app.add_typer(lm.app, name="lm")
app.command("diagnose")(diagnose.diagnose)
app.command("export")(export.export)
app.add_typer(data.app, name="data")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `eattn`; return its exit code."""
    return run_app(app, "eattn", argv)


def run_app(app: typer.Typer, name: str, argv: Sequence[str] | None = None) -> int:
    """Run one command; any error becomes one line on stderr and a non-zero exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args  # accepted after the command, too
    args = [arg for arg in args if arg != "--debug"] or ["--help"]
    try:
        code = app(args, prog_name=name, standalone_mode=False) or 0
        return _fail("interrupted", code=130) if code == 130 else code  # typer caught Ctrl-C
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", code=130)
    except Exception as error:
        if debug:
            raise
        return _fail(_reason(error), code=getattr(error, "exit_code", 1))


def _reason(error: Exception) -> str:
    """Return the first line of the message; for a bug, also how to see the traceback."""
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
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Declare the options of every command; `run_app` has already handled --debug."""


@app.command()
def info() -> None:
    """Print versions, processor, threads, and each backend with the reason if it cannot run.

    Example: eattn info
    """
    from eattn.info import describe

    lines = describe()
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")
