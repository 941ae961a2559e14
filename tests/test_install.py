"""Install sources and wheels: without a compiler, with a broken one, and without OpenMP."""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import eattn

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "src/eattn/ops/_native.so"
NATIVE = Path("src/eattn/ops/native")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="uses POSIX paths and compilers")

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


def install(source: Path, compiler: str | None = None, **settings: str) -> Path:
    """Install offline into a new folder and return it."""
    target = source.parent / "target"
    pip("install", "--target", str(target), str(source), compiler=compiler, **settings)
    return target


def build_wheel(source: Path, compiler: str | None = None, **settings: str) -> Path:
    """Build a wheel offline and return its path."""
    folder = source.parent / "wheels"
    pip("wheel", "--wheel-dir", str(folder), str(source), compiler=compiler, **settings)
    (wheel,) = folder.iterdir()
    return wheel


def pip(command: str, *arguments: str, compiler: str | None = None, **settings: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "EATTN_PURE"} | settings
    if compiler is not None:
        env |= {"CC": compiler, "CXX": compiler}
    options = ["-v", "--no-deps", "--no-build-isolation", "--no-index"]
    run(sys.executable, "-m", "pip", command, *options, *arguments, env=env)


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


def test_wheel_runs_on_every_python_of_this_platform(miniature):
    need_compiler()
    wheel = build_wheel(miniature)
    _, _, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none")
    assert platform != "any"
    with zipfile.ZipFile(wheel) as archive:
        kernels = [name for name in archive.namelist() if "native" in name]
    assert kernels == ["eattn/ops/_native.so", "eattn/ops/native.py"]


def test_wheel_without_kernel_is_an_error(miniature, tmp_path):
    missing = str(tmp_path / "missing-compiler")
    with pytest.raises(AssertionError, match=r"not built \(.* set EATTN_PURE=1 .*missing-compiler"):
        build_wheel(miniature, compiler=missing)


def test_pure_wheel_has_no_kernel(miniature):
    need_compiler()
    wheel = build_wheel(miniature, EATTN_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "eattn/ops/_native.so" not in archive.namelist()


def test_install_can_require_the_kernel(miniature, tmp_path):
    with pytest.raises(AssertionError, match="kernel was not built"):
        install(miniature, compiler=str(tmp_path / "missing-compiler"), EATTN_PURE="0")


def test_unknown_pure_setting_is_rejected(miniature):
    with pytest.raises(AssertionError, match="EATTN_PURE must be 0, 1 or unset, got 'yes'"):
        build_wheel(miniature, EATTN_PURE="yes")


def check_wheel_without_compiler(wheel: Path, tmp_path: Path) -> None:
    """Install the wheel into a new environment and compare its kernels with the eager backend."""
    home = tmp_path / "venv"
    venv.create(home)
    python = str(home / "bin/python")
    env = {"PATH": str(home / "bin"), "HOME": str(tmp_path)}
    options = ("--no-deps", "--no-index")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, str(wheel), env=env)
    (site,) = home.glob("lib/python*/site-packages")
    packages = Path(torch.__file__).parents[1]  # for torch; a plain path hides other installs
    (site / "torch.pth").write_text(str(packages))
    code = """
import eattn, sys, torch
assert eattn.__file__.startswith(sys.prefix), eattn.__file__
torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 65, 5).unbind()
results = []
for backend in ("native", "eager"):
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    y = eattn.ea_series(*inputs, causal=True, backend=backend)
    results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
for native, eager in zip(*results):
    torch.testing.assert_close(native, eager, rtol=1e-4, atol=1e-4)
"""
    run(python, "-W", "error", "-c", code, env=env, cwd=tmp_path)
    version = run(str(home / "bin/eattn"), "--version", env=env, cwd=tmp_path)
    assert version == f"eattn {eattn.__version__}\n"


def test_installed_wheel_runs_native_without_a_compiler(source, tmp_path):
    """Pack the kernel of this clone instead of compiling it again."""
    if not BUILT.exists():
        pytest.skip("this clone has no compiled kernel")
    place = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    kernel = source / "build" / place / "eattn/ops/_native.so"
    kernel.parent.mkdir(parents=True)
    shutil.copy(BUILT, kernel)
    os.utime(kernel, (time.time() + 60,) * 2)  # newer than its sources
    missing = str(tmp_path / "missing-compiler")
    check_wheel_without_compiler(build_wheel(source, compiler=missing), tmp_path)


@pytest.mark.full
def test_compiled_wheel_runs_native_without_a_compiler(source, tmp_path):
    need_compiler()
    check_wheel_without_compiler(build_wheel(source), tmp_path)


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
