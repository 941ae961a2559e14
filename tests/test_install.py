"""Install the sources with pip: without a compiler, with a broken one, and without OpenMP."""

import ctypes
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NATIVE = Path("src/eattn/ops/native")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the kernel is built on POSIX systems only")

# Miniature sources with the same files and macros, which compile in a fraction of a second.
API = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'
KERNELS = """
#define NAME2(a, b) {name}_##a##_##b
#define NAME(a, b) NAME2(a, b)
extern "C" EATTN_REAL NAME(EATTN_ISA, EATTN_REAL)() {{ return 1; }}
"""


@pytest.fixture
def source(tmp_path) -> Path:
    """Copy the sources without build products."""
    copy = tmp_path / "source"
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=built)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture
def miniature(source) -> Path:
    (source / NATIVE / "api.cpp").write_text(API)
    for name in ("kernels", "grid"):
        (source / NATIVE / f"{name}.cpp").write_text(KERNELS.format(name=name))
    return source


def install(source: Path, compiler: str | None = None) -> Path:
    """Install offline into a new folder and return it."""
    target = source.parent / "target"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    env = os.environ | ({} if compiler is None else {"CC": compiler, "CXX": compiler})
    run(sys.executable, "-m", "pip", "install", "-v", *options, str(source), env=env)
    return target


def run(*command: str, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def libraries(folder: Path) -> list[Path]:
    return list(folder.rglob("_native*"))


def need_compiler() -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler on this machine")


def test_install_without_a_compiler_uses_eager(source, tmp_path):
    target = install(source, compiler=str(tmp_path / "missing-compiler"))
    assert libraries(target) == []
    templates = {path.name for path in (target / "eattn" / "export" / "templates").iterdir()}
    assert {"classifier.py", "forecaster.py", "language_model.py", "graphs_onnx.py"} <= templates
    assert not (target / "paper").exists()
    code = """
import eattn, torch
assert eattn.__file__.startswith({target!r}), eattn.__file__
q, k, v = torch.randn(3, 1, 5, 4).unbind()
y = eattn.ea_series(q, k, v, causal=True)
assert torch.equal(y, eattn.ea_series(q, k, v, causal=True, backend="eager"))
reasons = eattn.backends()
assert reasons["eager"] is None
assert reasons["native"]
try:
    eattn.ea_series(q, k, v, backend="native")
except Exception as error:
    assert reasons["native"] in str(error), error
else:
    raise AssertionError("an unavailable backend must raise")
print(reasons["native"])
"""
    env = os.environ | {"PYTHONPATH": str(target)}
    python = (sys.executable, "-W", "error")
    reason = run(*python, "-c", code.format(target=str(target)), env=env, cwd=tmp_path)
    info = run(*python, "-m", "eattn", "info", env=env, cwd=tmp_path)
    assert f"backend native  {reason.strip()}" in info


def test_kernel_that_does_not_compile_is_removed(miniature):
    need_compiler()
    install(miniature)
    assert libraries(miniature / "build")
    (miniature / NATIVE / "kernels.cpp").write_text("this is not C++")
    shutil.rmtree(miniature.parent / "target")
    assert libraries(install(miniature)) == []
    assert libraries(miniature / "build") == []


def test_compiler_without_openmp_builds_the_kernel(miniature, tmp_path):
    need_compiler()
    compiler = tmp_path / "c++-without-openmp"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    (library,) = libraries(install(miniature, compiler=str(compiler)))
    assert ctypes.CDLL(str(library)).answer() == 42


def test_kernel_is_rebuilt_only_when_a_header_changed(miniature):
    need_compiler()
    install(miniature)
    (library,) = libraries(miniature / "build")
    first = library.stat().st_mtime_ns
    install(miniature)
    assert library.stat().st_mtime_ns == first
    header = next((miniature / NATIVE).glob("*.h"))
    os.utime(header, ns=(first + 10**9, first + 10**9))
    install(miniature)
    assert library.stat().st_mtime_ns != first


def test_source_distribution_contains_the_kernel(source):
    code = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    run(sys.executable, "-c", code, cwd=source)
    (archive,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as files:
        packed = {Path(name).name for name in files.getnames()}
    sources = {path.name for path in (source / NATIVE).iterdir()}
    assert sources | {"setup.py", "py.typed", "LICENSE"} <= packed
