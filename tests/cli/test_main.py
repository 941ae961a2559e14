"""The command line, in this process where that suffices, in one of its own for exit codes."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import eattn
from eattn import cli


def commands(of: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command there is, and every group of them."""
    of = typer.main.get_command(cli.app) if of is None else of
    yield path
    for name, below in getattr(of, "commands", {}).items():
        yield from commands(below, (*path, name))


def shell(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eattn", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_command_has_help_with_an_example(command):
    result = CliRunner().invoke(cli.app, [*command, "--help"])
    assert result.exit_code == 0
    _, example, text = " ".join(result.output.split()).partition("Example: ")
    assert example
    assert " ".join(["eattn", *command[:2]]) in text


def test_without_a_command_it_shows_its_help(capsys):
    assert cli.main([]) == 0
    assert "Commands" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == eattn.__version__


def test_info_names_versions_threads_and_every_backend(capsys):
    assert cli.main(["info"]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    lines = {name: value.strip() for name, value in lines.items()}
    assert lines["eattn"] == eattn.__version__
    assert lines["torch"] == torch.__version__
    assert lines["threads"] == str(torch.get_num_threads())
    assert lines["features"]
    for name, reason in eattn.backends().items():
        assert lines[f"backend {name}"].startswith(reason or "runs")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["info", "--bogus"], "No such option: --bogus"),
        (["lm"], "Missing command"),
        (["lm", "generate", "somewhere"], "--prompt"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gives_one_line_and_a_non_zero_exit(args, reason, capsys):
    assert cli.main(args) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("eattn: ")
    assert reason in err
    assert err.count("\n") == 1


def test_exit_codes_and_streams_of_the_real_program():
    good, bad = shell("--version"), shell("info", "--bogus")
    assert (good.returncode, good.stdout.strip(), good.stderr) == (0, eattn.__version__, "")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert len(bad.stderr.splitlines()) == 1


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_traceback_only_with_debug(place, monkeypatch, capsys):
    def broken() -> None:
        raise TypeError("something is wrong\nand more of it")

    monkeypatch.setattr("eattn.info.describe", broken)
    assert cli.main(["info"]) == 1
    assert capsys.readouterr().err == (
        "eattn: TypeError: something is wrong (--debug shows where)\n"
    )
    with pytest.raises(TypeError):
        cli.main(["--debug", "info"] if place == "before" else ["info", "--debug"])


def test_an_interrupt_is_one_line_and_130(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eattn.info.describe", interrupted)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "eattn: interrupted\n"
