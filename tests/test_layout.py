"""The architecture: imports point one way, and importing the package costs nothing."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "eattn"
FILES = sorted(SRC.rglob("*.py"))

# Lowest first; a unit may import those below it, never one beside or above it.
LAYERS = [
    {"_checks", "_io"},  # helpers of all
    {"data", "plots"},  # leaves
    {"ops"},
    {"distributed"},
    {"nn"},
    {"models"},
    {"train"},
    {"info"},
    {"timeseries", "hf", "diagnosis"},
    {"lm"},
    {"export"},
    {"cli"},
    {"__main__"},
]
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
BACKENDS = {f"eattn.ops.{name}" for name in ("eager", "native", "triton")}


def imports(path: Path) -> Iterator[str]:
    """Every module a file names in an import, at whatever depth; `from a import b` gives a.b."""
    package = ("eattn", *path.relative_to(SRC).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: -node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def unit(module: str) -> str | None:
    """`bench` of paper.bench.op; None outside eattn and for what its lazy root exports."""
    parts = module.split(".")
    name = parts[1] if parts[0] == "eattn" and len(parts) > 1 else None
    return name if name in LEVEL else None


def identify(path: Path) -> str:
    return str(path.relative_to(SRC))


@pytest.mark.parametrize("path", [p for p in FILES if p != SRC / "__init__.py"], ids=identify)
def test_imports_point_one_way(path):
    here = path.relative_to(SRC).with_suffix("").parts[0]
    assert here in LEVEL, f"give {here} a place in LAYERS"
    for module in imports(path):
        there = unit(module)
        if there is not None and there != here:
            assert LEVEL[there] < LEVEL[here], f"{here} must not import {module}"
        if module.startswith("eattn") and there is None:
            assert LEVEL[here] >= LEVEL["info"], f"{here} must not import eattn's root"


def test_only_series_knows_the_backends():
    """And info, which tells how the kernel was built, and a benchmark of one of them."""
    others = [path for path in FILES if path.parent.name != "triton"]  # a package, not a file
    known = {path.name for path in others for module in imports(path) if is_backend(module)}
    # traceable: eager, for torch.export
    assert known <= {"series.py", "info.py", "traceable.py"}


def is_backend(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in BACKENDS)


@pytest.mark.parametrize("leaf", ["data"])
def test_leaves_import_only_the_private_helpers(leaf):
    for path in (SRC / leaf).rglob("*.py"):
        for module in imports(path):
            assert module.split(".")[0] != "torch"
            assert unit(module) in (None, leaf, *LAYERS[0])


@pytest.mark.parametrize("code", ["import eattn; dir(eattn)", "import eattn.cli"])
def test_torch_is_imported_only_when_used(code):
    code += "; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_root_exports_what_it_lists():
    import eattn

    assert set(eattn.__all__) <= set(dir(eattn))
    assert all(getattr(eattn, name) is not None for name in eattn.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        eattn.no_such_name  # noqa: B018
