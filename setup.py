"""Builds the native kernel, `eattn/ops/_native.so`; everything else is in pyproject.toml.

The library is plain C++17 behind a C ABI: neither torch nor Python's headers are needed. `api.cpp`
is compiled once, `kernels.cpp` once per instruction set and type, each with its own flags, so that
one library serves every machine and picks at run time. Whatever goes wrong here costs speed, not
the install: nothing is written, a warning is given, and the eager backend serves.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

NATIVE = Path("src/eattn/ops/native")
FLAGS = [
    "-std=c++17",
    "-O2",
    "-g0",
    # What fast-math would give, less what changes values or, on loading, the whole process.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # every fma is written: bits must not depend on inlining
    "-fvisibility=hidden",
    "-Wno-psabi",
    "-Wno-unknown-pragmas",
]
X86 = {"avx512": ["-march=x86-64-v4"], "avx2": ["-march=x86-64-v3"], "baseline": []}
PORTABLE: dict[str, list[str]] = {"baseline": []}
OPENMP = "-fopenmp"

if sys.platform == "darwin":
    # A universal Python asks for both architectures at once, but the kernels are made for one.
    os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")


class BuildNative(build_ext):
    """Compile and link the kernel, or warn and leave nothing behind."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"  # ctypes loads it: no Python ABI in the name

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        if not (self.force or newer_group([*ext.sources, *ext.depends], str(target))):
            return
        target.unlink(missing_ok=True)  # a stale library must not outlive a failed build
        try:
            self._build(target)
        except Exception as error:  # any compiler, any way of failing
            target.unlink(missing_ok=True)
            self.warn(f"native kernel not built, the eager backend will serve: {error}")

    def copy_extensions_to_source(self) -> None:
        """For `pip install -e`: what was built, or nothing, takes the place of what was there."""
        for ext in self.extensions:
            (Path("src") / self.get_ext_filename(ext.name)).unlink(missing_ok=True)
        super().copy_extensions_to_source()

    def _build(self, target: Path) -> None:
        x86 = self._accepts("#ifndef __x86_64__\n#error\n#endif\n")
        uses_omp = "#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n"
        openmp = [OPENMP] if self._accepts(uses_omp, OPENMP) else []
        jobs = list(units(X86 if x86 else PORTABLE))

        def compile_unit(job: tuple[str, str, list[str]]) -> list[str]:
            name, source, flags = job
            return self.compiler.compile(
                [source],
                output_dir=str(Path(self.build_temp) / name),
                extra_postargs=[*FLAGS, *openmp, *flags],
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [o for made in pool.map(compile_unit, jobs) for o in made]
        self.compiler.link_shared_object(
            objects, str(target), extra_postargs=openmp, target_lang="c++"
        )

    def _accepts(self, code: str, *flags: str) -> bool:
        """Whether a library with this code compiles and links with these flags."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.cpp"
            source.write_text(code)
            try:
                objects = self.compiler.compile(
                    [str(source)], output_dir=folder, extra_postargs=["-std=c++17", *flags]
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
    """One wheel per platform: the kernel knows nothing of Python's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def units(isas: dict[str, list[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """(folder of the object, source, flags) of every object in the library."""
    yield "api", str(NATIVE / "api.cpp"), []
    for isa, march in isas.items():
        for real in ("float", "double"):
            macros = [f"-DEATTN_ISA={isa}", f"-DEATTN_REAL={real}"]
            yield f"{isa}-{real}", str(NATIVE / "kernels.cpp"), [*macros, *march]


setup(
    ext_modules=[
        Extension(
            "eattn.ops._native",
            sources=[str(path) for path in sorted(NATIVE.glob("*.cpp"))],
            depends=["setup.py", *(str(path) for path in sorted(NATIVE.glob("*.h")))],
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": AnyPythonWheel},
)
