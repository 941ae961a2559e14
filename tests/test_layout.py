"""Architecture: imports point in one direction, and importing the package is cheap."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TREES = {"eattn": ROOT / "src" / "eattn", "paper": ROOT / "paper"}

# Lowest layer first. Units import only lower layers; leaves import only helpers.
LAYERS = [
    {"_checks", "_io"},
    {"data", "plots"},
    {"ops"},
    {"distributed"},
    {"nn"},
    {"models"},
    {"train"},
    {"timeseries", "hf", "diagnosis", "info"},
    {"lm"},
    {"export"},
    {"cli"},
    {"__main__"},
]
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
LEAVES = {"_checks", "_io", "data", "plots"}
BACKENDS = ("eattn.ops.eager", "eattn.ops.native", "eattn.ops.triton")


def modules(tree: str) -> dict[str, Path]:
    """Return the files of a tree by module name, without tests and templates."""
    found = {}
    for path in sorted(TREES[tree].rglob("*.py")):
        parts = path.relative_to(TREES[tree]).with_suffix("").parts
        if not {"tests", "templates"} & set(parts):
            found[".".join((tree, *parts)).removesuffix(".__init__")] = path
    return found


FILES = {name: path for tree in TREES for name, path in modules(tree).items()}


def imports(name: str) -> Iterator[str]:
    """Yield every module that a file imports, also in functions; `from a import b` gives a.b."""
    path = FILES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def file_of(module: str) -> str | None:
    """Return the module that defines an imported name, or None outside both trees."""
    while module and module not in FILES:
        module = module.rpartition(".")[0]
    return module or None


def single_importers() -> dict[str, str]:
    """Return the modules, except `__init__`, with exactly one importer, and that importer."""
    importers = defaultdict(set)
    for name in FILES:
        for module in map(file_of, imports(name)):
            if module not in (None, name):
                importers[module].add(name)
    files = (name for name, path in FILES.items() if not path.name.startswith("__"))
    return {name: min(importers[name]) for name in files if len(importers[name]) == 1}


def unit(module: str) -> str | None:
    """Return the unit of a module, such as `nn` for eattn.nn.conv; None for other names."""
    root, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    return name if root == "eattn" and name in LEVEL else None


@pytest.mark.parametrize("name", [name for name in modules("eattn") if name != "eattn"])
def test_imports_point_to_lower_layers(name):
    here = name.split(".")[1]
    assert here in LEVEL, f"add {here} to LAYERS"
    for module in imports(name):
        there = unit(module)
        assert not module.startswith("paper"), "eattn must not import paper"
        if there is not None and there != here:
            assert LEVEL[there] < LEVEL[here], f"{here} must not import {module}"
            assert here not in LEAVES or there in LAYERS[0], f"{here} must not import {module}"
        if module.startswith("eattn") and there is None:
            assert LEVEL[here] >= LEVEL["info"], f"{here} must not import eattn's root"


def test_one_module_chooses_between_backends():
    """Exception: `info` describes the kernel."""
    known = {
        name.rpartition(".")[2]
        for name in modules("eattn")
        if not name.startswith(BACKENDS[-1])  # a package
        for module in imports(name)
        if any(module == backend or module.startswith(backend + ".") for backend in BACKENDS)
    }
    assert known <= {"backends", "info"}


def test_data_does_not_import_torch():
    for name in modules("eattn"):
        if name.startswith("eattn.data"):
            assert not any(module.split(".")[0] == "torch" for module in imports(name)), name


def test_modules_with_one_importer_state_a_concept():
    """`python tests/test_layout.py` lists them; merge a fragment into its only importer."""
    for name in single_importers():
        docstring = ast.get_docstring(ast.parse(FILES[name].read_text(encoding="utf-8")))
        assert docstring, f"{name} has one importer and no docstring"


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("import eattn; dir(eattn)", "torch"),
        ("import eattn.cli", "torch"),
        ("import eattn.models, eattn.train", "torch._dynamo"),  # takes as long as torch itself
    ],
)
def test_torch_is_imported_only_when_used(code, module):
    code += f"; import sys; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_root_exports_what_it_lists():
    import eattn

    assert set(eattn.__all__) <= set(dir(eattn))
    assert all(getattr(eattn, name) is not None for name in eattn.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        eattn.no_such_name  # noqa: B018


if __name__ == "__main__":
    for name, importer in single_importers().items():
        print(f"{name} <- {importer}")
