"""npm packages of the site: fetch them once, and list the files that the site serves.

Usage: python docs/site/packages.py fetches them; so does `make docs`.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock  # torch needs it, too

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "docs"
# Folders of npm packages that are copied, and the files in them.
PACKAGES = {
    "katex": ("katex/dist", ["katex.mjs", "katex.min.css", "fonts/*.woff2"]),
    "inter": ("@fontsource-variable/inter", ["wght.css", "files/*-wght-normal.woff2"]),
    "jetbrains-mono": (
        "@fontsource-variable/jetbrains-mono",
        ["wght.css", "files/*-wght-normal.woff2"],
    ),
    "onnxruntime": (
        "onnxruntime-web/dist",
        ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"],
    ),
}


def are_fetched() -> bool:
    """Return whether the packages are up to date."""
    lock, fetched = HERE / "package-lock.json", BUILD / "node_modules" / ".package-lock.json"
    return fetched.exists() and fetched.stat().st_mtime >= lock.stat().st_mtime


def fetch() -> None:
    """Fetch the packages unless they are up to date; raise RuntimeError if that fails."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with FileLock(BUILD / "npm.lock"):
        if are_fetched():
            return
        if shutil.which("npm") is None:
            raise RuntimeError(
                "the site needs npm, which fetches its fonts, KaTeX and onnxruntime; install"
                " Node.js"
            )
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, BUILD)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        if subprocess.run(["npm", "ci", *options], cwd=BUILD, check=False).returncode:
            raise RuntimeError(
                "npm could not fetch the packages in docs/site/package.json; see above"
            )


def files() -> Iterator[tuple[str, Path]]:
    """Return the path in the site and the source of each file."""
    for package, (folder, patterns) in PACKAGES.items():
        top = BUILD / "node_modules" / folder
        for path in sorted(path for pattern in patterns for path in top.glob(pattern)):
            yield f"packages/{package}/{path.relative_to(top).as_posix()}", path


if __name__ == "__main__":
    fetch()
