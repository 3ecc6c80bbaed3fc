"""A hook of MkDocs: pages of the site that don't lie in docs/, links out of it, and the reference.

Pages are written for GitHub, where a link leads to a file of the repository. Here such a link becomes one to
the page made of that file or, where there is none, to the file at the repository's address.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify
from pymdownx.superfences import fence_code_format

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
log = get_plugin_logger("site_pages")
#: Addresses of files and folders, behind the repository's own.
FILE, FOLDER = "blob/main", "tree/main"


def on_config(config: MkDocsConfig) -> None:
    """Takes the repository's address from pyproject.toml; names anchors and draws Mermaid as GitHub does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = project["urls"]["Source"]
    config.repo_name = "/".join(config.repo_url.split("/")[-2:])
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    drawn = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [drawn]}
    handlers = config.plugins["mkdocstrings"].config.handlers
    handlers["python"]["options"]["extensions"] = [str(ROOT / "scripts" / "site_docstrings.py")]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds the pages that lie elsewhere, and the one of the Python interface."""
    for source in config.extra["sources"].values():
        moved = files.get_file_from_path(os.path.relpath(ROOT / source, config.docs_dir))
        if moved is not None:
            files.remove(moved)
    for name, source in config.extra["sources"].items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, config.extra["reference"], content=write_reference()))


def write_reference() -> str:
    """The page of every public name of the package, in the order of the functions and their results."""
    stub = (ROOT / "edgecompile" / "__init__.pyi").read_text(encoding="utf-8")
    names = [
        alias.asname
        for line in ast.parse(stub).body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    ]
    head = "# The Python interface\n\nWritten from the docstrings. The [guide](python.md) shows how to use it.\n"
    # Functions come first, then the classes that they take and give.
    ordered = sorted((name for name in names if name != "errors"), key=lambda n: n[0].isupper())
    return "\n".join([head, *map(_entry, ordered), ""])


def _entry(name: str) -> str:
    entry = f"::: edgecompile.{name}\n"
    if name == "Model":
        # Other members are the runtime's own: the guide has a table of the public ones.
        guide = (ROOT / "docs" / "runtime.md").read_text(encoding="utf-8")
        table = guide.partition("| member |")[2].partition("\n\n")[0]
        cells = " ".join(re.findall(r"^\| (`.+?) \|", table, re.MULTILINE))
        members = re.findall(r"`(\w+)(?:\([^`]*\))?`", cells)
        entry += f"    options: {{members: [{', '.join(members)}]}}\n"
    return entry


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to pages of the site, and writes lists and tables as Python-Markdown reads them."""
    sources: dict[str, str] = config.extra["sources"]
    own = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {source: name for name, source in sources.items()}

    def lead(match: re.Match[str]) -> str:
        target, mark, anchor = match[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(own), target))
        name = pages.get(path, os.path.relpath(path, "docs"))
        if files.get_file_from_path(name) is None:
            if not (ROOT / path).exists():
                log.warning("%s: there is no %s", own, target)
            kind = FOLDER if (ROOT / path).is_dir() else FILE
            return f"]({config.repo_url}/{kind}/{path}{mark}{anchor})"
        return f"]({os.path.relpath(name, os.path.dirname(page.file.src_uri))}{mark}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for index in range(0, len(parts), 2):
        text = re.sub(r"\]\(([^)\s]+)\)", lead, parts[index])
        # What belongs to an item of a list is indented by two or three spaces, here by four.
        text = re.sub(r"^ {2,3}(?=\S)", "    ", text, flags=re.MULTILINE)
        # A list within an item, and an item after one of several paragraphs, come after an empty line.
        text = re.sub(r"^( {4}(?![ *-]).*\n)(?= {4}[*-] )", r"\1\n", text, flags=re.MULTILINE)
        text = re.sub(r"(\n\n(?: {4}.*\n)+)(?=(?:[*-]|\d+\.) )", r"\1\n", text)
        # A bar within code ends no cell here, and a backslash before it would be shown.
        parts[index] = re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), text)
    return "".join(parts)
