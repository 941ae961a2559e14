"""Build the native kernel `eattn/ops/_native.so`; pyproject.toml has all other metadata.

The library is plain C++17 with a C ABI, so neither torch nor the Python headers are needed.
`api.cpp` is compiled once, and the other files once per instruction set and type with own flags;
the library selects the instruction set at run time. If the build fails, a warning is printed and
the installation continues without the library. eattn then uses the slower eager backend.
"""

import os
import platform
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

if sys.platform == "darwin":
    # A universal Python builds for two architectures at once, but the kernels support only one.
    os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")


class BuildNative(build_ext):
    """Compile and link the kernel, or print a warning and leave no library."""

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
            self.warn(f"the native kernel was not built, so eattn uses the eager backend: {error}")

    def copy_extensions_to_source(self) -> None:
        """Replace the library in the source tree, for `pip install -e`."""
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
        """Return whether a library with this code compiles and links with these flags."""
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
    """Build one wheel per platform, since the kernel does not depend on the Python ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def units(isas: dict[str, list[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the folder, source and flags of every object file in the library."""
    yield "api", str(NATIVE / "api.cpp"), []
    for isa, march in isas.items():
        for real, name in product(("float", "double"), ("kernels", "grid")):
            macros = [f"-DEATTN_ISA={isa}", f"-DEATTN_REAL={real}"]
            yield f"{isa}-{real}", str(NATIVE / f"{name}.cpp"), [*macros, *march]


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
