"""Command line: help, exit codes and error messages."""

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import eattn
from eattn import cli


def commands(of: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every command and group."""
    of = typer.main.get_command(cli.app) if of is None else of
    yield path
    for name, below in getattr(of, "commands", {}).items():
        yield from commands(below, (*path, name))


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_help_fits_80_columns_and_has_an_example(command):
    result = CliRunner().invoke(cli.app, [*command, "--help"])
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    assert "..." not in result.output.partition("Commands:")[2]  # truncated summaries
    _, example, text = " ".join(result.output.split()).partition("Example: ")
    assert example
    assert " ".join(["eattn", *command[:2]]) in text


def test_help_shows_arguments_and_flags_without_types(capsys):
    assert cli.main(["forecast", "predict", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: eattn forecast predict [OPTIONS] MODEL [DATA]\n")
    assert re.search(r"^  --force +Overwrite existing files\.$", text, re.MULTILINE)
    assert "<" not in text


def test_help_lists_the_commands_in_order(capsys):
    assert cli.main([]) == 0
    _, _, text = capsys.readouterr().out.partition("Commands")
    found = re.findall(r"^\W*([a-z]+)  +[A-Z]", text, re.MULTILINE)
    assert found == ["forecast", "classify", "lm", "diagnose", "export", "data", "info"]


def test_version_is_printed(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"eattn {eattn.__version__}\n"


def test_info_lists_versions_threads_and_backends(capsys):
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
def test_invalid_input_gives_one_line_and_nonzero_code(args, reason, capsys):
    assert cli.main(args) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("eattn: ")
    assert reason in err
    assert err.count("\n") == 1


def test_module_exits_with_the_code_of_main():
    command = [sys.executable, "-m", "eattn", "info", "--bogus"]
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert len(bad.stderr.splitlines()) == 1


@pytest.mark.parametrize("position", ["before", "after"])
def test_debug_shows_the_traceback(position, monkeypatch, capsys):
    def broken() -> None:
        raise TypeError("something is wrong\nand more details")

    monkeypatch.setattr("eattn.info.describe", broken)
    assert cli.main(["info"]) == 1
    assert capsys.readouterr().err == (
        "eattn: TypeError: something is wrong (use --debug to show the traceback)\n"
    )
    with pytest.raises(TypeError):
        cli.main(["--debug", "info"] if position == "before" else ["info", "--debug"])


def test_interrupt_gives_one_line_and_code_130(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eattn.info.describe", interrupted)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "eattn: interrupted\n"


def test_warnings_are_one_line_without_source_position(capsys, tmp_path):
    (tmp_path / "toy.csv").write_bytes(b"date,caf\xe9\n2020-01-01,1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main(["data", "show", str(tmp_path / "toy.csv")]) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"eattn: {tmp_path / 'toy.csv'} is not UTF-8 and was read as cp1252")
