"""Build the native kernel `eattn/ops/_native.so`; pyproject.toml has all other metadata.

The library is plain C++17 with a C ABI, so neither torch nor the Python headers are needed.
`api.cpp` is compiled once, and the other files once per instruction set and type with own flags;
the library selects the instruction set at run time.

If the kernel does not compile, `pip wheel` and other commands that build wheels fail. `pip install`
prints a warning and continues, and eattn uses the slower eager backend. Two settings do not depend
on the command: EATTN_PURE=1 builds no kernel, and EATTN_PURE=0 always fails without one.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

NATIVE = Path("src/eattn/ops/native")
API = str(NATIVE / "api.cpp")
PURE = os.environ.get("EATTN_PURE", "")
FLAGS = [
    "-std=c++17",
    "-O2",
    "-g0",
    # The parts of -ffast-math that change neither values nor global floating-point modes.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # fma is used explicitly, so that results do not depend on inlining
    "-fvisibility=hidden",
    "-Wno-psabi",
    "-Wno-unknown-pragmas",
]
X86 = {"avx512": ["-march=x86-64-v4"], "avx2": ["-march=x86-64-v3"], "baseline": []}
PORTABLE: dict[str, list[str]] = {"baseline": []}
OPENMP = "-fopenmp"

if PURE not in ("", "0", "1"):
    raise SystemExit(f"EATTN_PURE must be 0, 1 or unset, got {PURE!r}")

if sys.platform == "darwin":
    # A universal Python builds for two architectures at once, but the kernels support only one.
    os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")


class BuildNative(build_ext):
    """Compile and link the kernel, or fail and leave no library."""

    def get_ext_filename(self, fullname: str) -> str:
        return (
            fullname.replace(".", "/") + ".so"
        )  # loaded by ctypes, so the name has no Python ABI tag

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        if not (self.force or newer_group([*ext.sources, *ext.depends], str(target))):
            return
        target.unlink(missing_ok=True)  # a failed build must not leave a stale library
        try:
            self._build(target)
        except Exception as error:  # compilers fail in many ways
            target.unlink(missing_ok=True)
            if kernel_is_required():
                hint = "install a C++17 compiler, or set EATTN_PURE=1 for a wheel without kernel"
                raise SystemExit(f"the native kernel was not built ({hint}): {error}") from error
            self.warn(f"the native kernel was not built, so eattn uses the eager backend: {error}")

    def copy_extensions_to_source(self) -> None:
        """Replace the library in the source tree, for `pip install -e`."""
        for ext in self.extensions:
            (Path("src") / self.get_ext_filename(ext.name)).unlink(missing_ok=True)
        super().copy_extensions_to_source()

    def _build(self, target: Path) -> None:
        if sys.platform == "win32":
            self._use_clang_cl()
        x86 = self._accepts("#ifndef __x86_64__\n#error\n#endif\n")
        uses_omp = "#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n"
        threads = sys.platform != "win32" and self._accepts(uses_omp, OPENMP)
        openmp = [OPENMP] if threads else []
        jobs = list(units(X86 if x86 else PORTABLE))

        def compile_unit(job: tuple[str, str, list[str]]) -> list[str]:
            name, source, flags = job
            return self.compiler.compile(
                [source],
                output_dir=str(Path(self.build_temp) / name),
                extra_postargs=compiler_flags([*FLAGS, *openmp, *flags]),
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [o for made in pool.map(compile_unit, jobs) for o in made]
        exports = re.findall(r"^EATTN_API .*?(\w+)\(", Path(API).read_text("utf-8"), re.MULTILINE)
        self.compiler.link_shared_object(  # exports: for Windows
            objects, str(target), export_symbols=exports, extra_postargs=openmp, target_lang="c++"
        )

    def _use_clang_cl(self) -> None:
        """Replace cl.exe, which lacks the vector extensions, by clang-cl."""
        clang = shutil.which("clang-cl")
        if clang is None:
            raise FileNotFoundError("the kernel needs clang-cl on Windows; install LLVM")
        if not self.compiler.initialized:
            self.compiler.initialize(self.plat_name)
        self.compiler.cc = clang

    def _accepts(self, code: str, *flags: str) -> bool:
        """Return whether a library with this code compiles and links with these flags."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.cpp"
            source.write_text(code)
            try:
                objects = self.compiler.compile(
                    [str(source)],
                    output_dir=folder,
                    extra_postargs=compiler_flags(["-std=c++17", *flags]),
                )
                self.compiler.link_shared_object(
                    objects,
                    str(Path(folder) / "probe.so"),
                    extra_postargs=list(flags),
                    target_lang="c++",
                )
            except Exception:
                return False
        return True


class AnyPythonWheel(bdist_wheel):
    """Build one wheel per platform, since the kernel does not depend on the Python ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def units(isas: dict[str, list[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the folder, source and flags of every object file in the library."""
    yield "api", API, []
    for isa, march in isas.items():
        for real, name in product(("float", "double"), ("kernels", "grid")):
            macros = [f"-DEATTN_ISA={isa}", f"-DEATTN_REAL={real}"]
            yield f"{isa}-{real}", str(NATIVE / f"{name}.cpp"), [*macros, *march]


def compiler_flags(flags: list[str]) -> list[str]:
    """Return flags of GCC and Clang in the form that the compiler of this system accepts."""
    return [f"/clang:{flag}" for flag in flags] if sys.platform == "win32" else flags


def kernel_is_required() -> bool:
    """Return whether a wheel is built to be kept, and not only to be installed.

    pip builds a wheel in both cases, so only its command line tells them apart.
    """
    words = set(parent_command())
    builds = not words.isdisjoint({"wheel", "build", "pyproject-build"})
    return PURE == "0" or (builds and "install" not in words)


def parent_command() -> list[str]:
    """Return the command line of the tool that runs the build; on Windows, nothing."""
    record = Path(f"/proc/{os.getppid()}/cmdline")
    if record.exists():
        words = record.read_text(errors="replace").split("\0")
    elif sys.platform == "darwin":
        command = ["ps", "-o", "args=", "-p", str(os.getppid())]
        words = subprocess.run(command, capture_output=True, text=True).stdout.split()
    else:
        words = []
    return [Path(word).name for word in words]


kernel = Extension(
    "eattn.ops._native",
    sources=[str(path) for path in sorted(NATIVE.glob("*.cpp"))],
    depends=["setup.py", *(str(path) for path in sorted(NATIVE.glob("*.h")))],
    language="c++",
    optional=True,
)
setup(
    ext_modules=[] if PURE == "1" else [kernel],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": AnyPythonWheel},
)
