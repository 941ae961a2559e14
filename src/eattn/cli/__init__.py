"""The command line `eattn`: entry point, help, error messages and the command `info`."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import eattn
from eattn.cli import classify, data, diagnose, export, forecast, lm

COMMANDS = ("forecast", "classify", "lm", "diagnose", "export", "data", "info")


class _Group(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)  # Typer would list plain commands before groups


class _Command(TyperCommand):
    """Command whose help shows arguments as DATA, not as {DATA} or DATA <str>."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [piece.replace("{", "").replace("}", "") for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            params = (p for p in self.get_params(ctx) if p.param_type_name == kind)
            records = [record for p in params if (record := p.get_help_record(ctx))]
            if kind == "argument":
                records = [(name.partition(" <")[0], text) for name, text in records]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `eattn` and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; by default those of the process.
    """
    return run_app(app, "eattn", argv)


def run_app(app: typer.Typer, name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command; an error becomes one line on stderr and a nonzero exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args  # also accepted after the command
    args = [arg for arg in args if arg != "--debug"] or ["--help"]
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _show_warning  # type: ignore[assignment]
            code = app(args, prog_name=name, standalone_mode=False) or 0
        return _fail("interrupted", code=130) if code == 130 else code  # Typer handled Ctrl-C
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", code=130)
    except Exception as error:
        if debug:
            raise
        return _fail(_reason(error), code=getattr(error, "exit_code", 1))


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any
) -> None:
    """Print a warning; those for users without the position in the source."""
    text = warnings.formatwarning(message, category, filename, lineno)
    print(f"eattn: {message}" if category is UserWarning else text, file=sys.stderr)


def _reason(error: Exception) -> str:
    """Return the first line of the message; for a bug, also how to see the traceback."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.strerror}: {error.filename}"
    line = message.strip().partition("\n")[0]
    if isinstance(error, (ValueError, OSError, ImportError)) or hasattr(error, "format_message"):
        return line or type(error).__name__
    return f"{type(error).__name__}: {line} (use --debug to show the traceback)"


def _fail(reason: str, *, code: int) -> int:
    print(f"eattn: {reason}", file=sys.stderr)
    return code


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"eattn {eattn.__version__}")
        raise typer.Exit


def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the full traceback if the command fails.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Declare the options of the command line; `run_app` has already handled --debug."""


def info() -> None:
    """Print versions, hardware and available backends.

    A backend that cannot run is listed with the reason.

    Example: eattn info
    """
    from eattn.info import describe

    lines = describe()
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")


app = typer.Typer(
    name="eattn",
    cls=_Group,
    help="Element-wise attention in linear time with a state of constant size.\n\n"
    "Example: eattn forecast fit sales.csv --out model/ --horizon 12",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich panels are hard to read in 80 columns
)
app.callback()(options)
app.add_typer(forecast.app, name="forecast")
app.add_typer(classify.app, name="classify")
app.add_typer(lm.app, name="lm")
app.command("diagnose")(diagnose.diagnose)
app.command("export")(export.export)
app.add_typer(data.app, name="data")
app.command("info")(info)


def _commands(group: typer.Typer) -> Iterator[Any]:
    yield from group.registered_commands
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from _commands(below.typer_instance)


for _command in _commands(app):
    _command.cls = _Command
