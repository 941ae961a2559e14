"""Hooks of the documentation site: generated pages, links, pictures, and packages from npm.

Documents link to files of the repository, so that they also work on GitHub. Here, a link to a
document becomes a link to its page, and a link to any other file becomes a link to GitHub.
"""

import ast
import html
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import packages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from packages import BUILD

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REPORT = BUILD / "report" / "report.html"  # kept between builds, as are packages and models
MODELS = BUILD / "models"
# Documents outside docs/ and their pages.
DOCUMENTS = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "PAPER.md": "paper.md",
    "paper/RESULTS.md": "results.md",
}
MODEL_SOURCES = ("export", "models", "timeseries")  # packages whose changes change the models
WIDE = ["navigation", "toc"]
HIDDEN = {"index.md": WIDE, "browser.md": WIDE, "report/index.md": WIDE, "api/index.md": ["toc"]}
LISTS = ("api/", "changelog", "results")  # found after guides
NARROW = 600  # pixels; wider pictures scroll sideways on phones
LINK = re.compile(r"(?<!!)(\[[^\]]*\]\()([^)\s]+)(\))")
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)")
SECTION = re.compile(r"^\[[^\]]*\]\((\S*README\.md)#([\w-]+)\)$", re.MULTILINE)
LIST = re.compile(r"^(?!(?:[-*+]|\d+\.) )(\S.*\n)(?=(?:[-*+]|\d+\.) )", re.MULTILINE)
NESTED = re.compile(r"^ {2,3}(?=[-*+] )", re.MULTILINE)
TUPLE = re.compile(r"\(\s*<code>\(((?:(?!</code>).)*)\)</code>\s*(?=[,)])", re.DOTALL)
UNDESCRIBED = re.compile(r"\s*–\s*<div class=\"doc-md-description\">\s*</div>")
COLOUR = re.compile(r"--(\w+): (#\w{6})")
# The table of a data frame, without its class and its style sheet.
FRAME = re.compile(r"<table[^>]*>(.*)</table>", re.DOTALL)
SVG = "image/svg+xml"
REPORT_LINK = (
    "The [interactive report](report/index.md) shows the same, with charts for any screen."
)
REPORT_PAGE = """# Interactive report

Every table and figure, next to the paper's numbers. Hide and show series in the legends, and point
at a mark to read its value. [Open the report on its own](report.html).

<iframe class="report" src="report.html" title="Interactive report"></iframe>
"""


def on_startup(command: str, dirty: bool) -> None:
    """Fetch packages, make the browser's models and the report, unless they are up to date."""
    try:
        packages.fetch()
    except RuntimeError as error:
        raise PluginError(str(error)) from error
    script = HERE / "browser_models.py"
    folders = [ROOT / "src/eattn" / name for name in MODEL_SOURCES]
    kinds = ("*.py", "*.safetensors")
    sources = [path for folder in folders for kind in kinds for path in folder.rglob(kind)]
    if _newest([script, *sources]) > _newest([MODELS / "models.json"]):
        command_line = [sys.executable, str(script), str(MODELS)]
        if subprocess.run(command_line, check=False).returncode:
            raise PluginError(f"{script.relative_to(ROOT)} failed; see above")
    study = [path for path in (ROOT / "paper").rglob("*.*") if "tests" not in path.parts]
    if _newest(path for path in study if path.suffix != ".pyc") > _newest([REPORT]):
        command_line = [sys.executable, "-m", "paper", "report", "--out", str(REPORT.parent)]
        if subprocess.run(command_line, cwd=ROOT, check=False).returncode:
            raise PluginError("`python -m paper report` failed; see above")


def _newest(paths: Iterable[Path]) -> float:
    """Return the latest time of change, or 0 without files."""
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and files that are not in docs/."""
    for source, name in DOCUMENTS.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for name in _paths(config.nav):
        if name.startswith("api/"):
            files.append(File.generated(config, name, content=_api(name, config)))
    files.append(File.generated(config, "report/index.md", content=REPORT_PAGE))
    for path in sorted(REPORT.parent.iterdir()):
        files.append(File.generated(config, f"report/{path.name}", abs_src_path=str(path)))
    for name, path in packages.files():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted(MODELS.iterdir()):
        files.append(File.generated(config, f"models/{path.name}", abs_src_path=str(path)))
    for notebook in sorted(ROOT.glob("docs/notebooks/*.ipynb")):
        name = f"notebooks/{notebook.stem}"
        files.append(File.generated(config, f"{name}.md", content=""))  # see on_page_markdown
        for number, plot in enumerate(_plots(_cells(notebook))):
            files.append(File.generated(config, f"{name}/{number}.svg", content=plot))
    dark = _dark_colours()
    for picture in [*ROOT.glob("docs/assets/*.svg"), *ROOT.glob("paper/results/*.svg")]:
        text = re.sub(r'<rect [^>]*fill="#ffffff"/>', "", picture.read_text("utf-8"), count=1)
        files.append(File.generated(config, f"pictures/{picture.name}", content=text))
        text = re.sub(r"#\w{6}\b", lambda found: dark.get(found[0].lower(), found[0]), text)
        files.append(File.generated(config, f"pictures/{picture.stem}-dark.svg", content=text))
    return files


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _paths(part)


def _dark_colours() -> dict[str, str]:
    """Return the colours of charts in dark mode by those in light mode, as the report has them."""
    style = (ROOT / "paper" / "harness" / "page.css").read_text(encoding="utf-8")
    light, dark = (dict(COLOUR.findall(part)) for part in style.split("}")[0:2])
    return {light[name]: colour for name, colour in dark.items()}


def _api(name: str, config: MkDocsConfig) -> str:
    """Return the source of a page of the API reference."""
    if name == "api/command-line.md":
        return _command_line()
    modules = [path[4:-3] for path in _paths(config.nav) if path.startswith("api/eattn")]
    if name == "api/index.md":
        lines = [f"| [{module}]({module}.md) | {_summary(module)} |" for module in modules]
        lines.append("| [Command line](command-line.md) | The commands of `eattn`. |")
        return "\n".join(["# API reference\n", "| module | contents |", "|---|---|", *lines])
    module = name[4:-3]
    origins = {name: _origin(module, name) for name in _members(module)}
    # Griffe takes a function such as `eattn.data.locate.locate` for its module.
    shadowed = [origin for name, origin in origins.items() if origin.endswith(f".{name}.{name}")]
    lines = [f"# {module}\n", f"::: {module}", "    options:", "      members:"]
    lines += [f"        - {name}" for name, origin in origins.items() if origin not in shadowed]
    for origin in shadowed:
        lines += [f"\n::: {origin}", "    options:"]
        lines += ["      show_root_heading: true", "      show_root_toc_entry: true"]
    return "\n".join(lines)


def _tree(module: str) -> ast.Module:
    path = ROOT / "src" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _summary(module: str) -> str:
    """Return the first line of the docstring of a module."""
    return (ast.get_docstring(_tree(module)) or "").partition("\n")[0]


def _members(module: str) -> list[str]:
    """Return the names in `__all__` that are not modules, or all public functions."""
    body = _tree(module).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            folder = ROOT / "src" / module.replace(".", "/")
            return [n for n in names if not n.startswith("_") and not (folder / n).is_dir()]
    return [n.name for n in body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]


def _origin(module: str, name: str) -> str:
    """Return where a name is defined, such as eattn.nn.attention.ElementwiseAttention."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            assert node.module is not None
            package = (ROOT / "src" / node.module.replace(".", "/")).is_dir()
            return _origin(node.module, name) if package else f"{node.module}.{name}"
    return f"{module}.{name}"


def _command_line() -> str:
    """Return the help of every command."""
    import typer
    from typer.main import get_command

    from eattn.cli import app

    def sections(command: Any, parent: Any, level: int) -> Iterator[str]:
        context = typer.Context(command, info_name=command.name, parent=parent)
        title = context.command_path
        yield f"{'#' * level} {title}\n\n```text\n{command.get_help(context).strip()}\n```\n"
        for name in command.list_commands(context) if hasattr(command, "commands") else ():
            yield from sections(command.commands[name], context, min(level + 1, 3))

    root = get_command(app)
    root.name = "eattn"
    return "\n".join(["# Command line\n", *sections(root, None, 2)])


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Include sections of other documents, and point links and pictures to the site."""
    page.meta["hide"] = HIDDEN.get(page.file.src_uri, [])
    if page.file.src_uri.startswith(LISTS):
        page.meta["search"] = {"boost": 0.5}
    origin = {name: source for source, name in DOCUMENTS.items()}.get(page.file.src_uri)
    if page.file.src_uri.startswith(("api/", "report/")):
        return markdown
    if page.file.src_uri.startswith("notebooks/"):
        return _notebook(page, config)
    text = _translate(markdown, origin or f"docs/{page.file.src_uri}", page, config)
    if page.file.src_uri == "results.md":
        text = text.replace("\n\n", f"\n\n{REPORT_LINK}\n\n", 1)
    return text


def _cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return cells


def _plots(cells: list[dict[str, Any]]) -> list[str]:
    """Return the plots of a notebook as SVG, in their order."""
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    return ["".join(o["data"][SVG]) for o in outputs if SVG in o.get("data", ())]


def _notebook(page: Page, config: MkDocsConfig) -> str:
    """Return a notebook with its outputs as Markdown."""
    source = "docs/" + page.file.src_uri.replace(".md", ".ipynb")
    cells = _cells(ROOT / source)
    parts, plots = [], iter(enumerate(_plots(cells)))
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_translate(text, source, page, config))
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if SVG in data:
                number, plot = next(plots)
                size = 'class="wide" ' if _width(plot) > NARROW else ""
                alt = "Plot of the code above"
                shown = f'<img {size}src="{number}.svg" alt="{alt}" loading="lazy">'
            elif table := FRAME.search("".join(data.get("text/html", ()))):
                shown = f"<table>{table[1]}</table>"
            else:
                text = html.escape("".join(output.get("text") or data["text/plain"]))
                shown = f"<pre>{text.rstrip().replace('`', '&#96;')}</pre>"
            parts.append(f'<div class="output">{shown}</div>')
    link = f"[Download this notebook]({posixpath.basename(source)})"
    return "\n\n".join(parts).replace("\n\n", f"\n\n{link}{{ .download }}\n\n", 1)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Write types such as "Tensor, shape (B, L)" as in docstrings; Griffe takes them for tuples."""
    shape = '<span title="shape">shape</span>'
    output = TUPLE.sub(r"(<code>\1</code>", output).replace(f"{shape}(", f"{shape} (")
    return UNDESCRIBED.sub("", output)


def _translate(markdown: str, origin: str, page: Page, config: MkDocsConfig) -> str:
    """Translate a document, or a part of it, to a part of a page."""

    def resolve(target: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))

    def link(found: re.Match[str]) -> str:
        target, hash_sign, anchor = found[2].partition("#")
        if not target or ":" in target:
            return found[0]
        path = resolve(target)
        if not (ROOT / path).exists():
            raise PluginError(f"{origin} links to {found[2]}, which does not exist")
        name = DOCUMENTS.get(path) or path.removeprefix("docs/").replace(".ipynb", ".md")
        if path in DOCUMENTS or (path.startswith("docs/") and name.endswith(".md")):
            return found[1] + _relative(name, page) + hash_sign + anchor + found[3]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{found[1]}{config.repo_url}/{kind}/main/{path}{hash_sign}{anchor}{found[3]}"

    def picture(found: re.Match[str]) -> str:
        path = ROOT / resolve(found[2])
        if not path.is_file():
            raise PluginError(f"{origin} shows {found[2]}, which does not exist")
        wide = ".wide " if _width(path.read_text(encoding="utf-8")) > NARROW else ""
        stem = _relative(f"pictures/{path.stem}", page)
        names = f"{stem}.svg#only-light", f"{stem}-dark.svg#only-dark"
        return "".join(f"![{found[1]}]({name}){{ {wide}loading=lazy }}" for name in names)

    markdown = NESTED.sub("    ", LIST.sub(r"\1\n", markdown))  # lists that GitHub understands
    parts, end = [], 0
    for found in SECTION.finditer(markdown):  # a paragraph that only links to a section of README
        parts.append(PICTURE.sub(picture, LINK.sub(link, markdown[end : found.start()])))
        source, end = resolve(found[1]), found.end()
        parts.append(_translate(_section(source, found[2]), source, page, config))
    return "".join([*parts, PICTURE.sub(picture, LINK.sub(link, markdown[end:]))])


def _width(picture: str) -> float:
    """Return the width of an SVG picture."""
    found = re.search(r' width="([\d.]+)', picture)
    return float(found[1]) if found else 0.0


def _relative(name: str, page: Page) -> str:
    return posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or ".")


def _section(source: str, anchor: str) -> str:
    """Return the text of a section of a document, without its heading."""
    parts = re.split(r"^## (.+)\n", (ROOT / source).read_text(encoding="utf-8"), flags=re.MULTILINE)
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        if re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") == anchor:
            return text.strip()
    raise PluginError(f"{source} has no section #{anchor}")
