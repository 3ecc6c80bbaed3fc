"""The site: every page is in its navigation, and it is built without a broken link."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import need_variable

yaml = pytest.importorskip("yaml")

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
CONFIG = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())


def pages(nav: Any) -> Iterator[str]:
    """The pages of a navigation, which holds sections within sections."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(item)


def test_every_page_is_in_the_navigation_once() -> None:
    sources = CONFIG["extra"]["sources"]
    assert all((REPOSITORY / source).is_file() for source in sources.values())
    found = [*DOCS.glob("*.md"), *DOCS.glob("benchmarks/[!2]*.md")]
    own = {page.relative_to(DOCS).as_posix() for page in found}
    own = {page for page in own if f"docs/{page}" not in sources.values()}
    named = Counter(pages(CONFIG["nav"]))
    assert set(named.values()) == {1}
    assert set(named) == {*own, *sources, CONFIG["extra"]["reference"]}


def build(tree: Path, output: Path) -> subprocess.CompletedProcess[str]:
    python = need_variable("EDGECOMPILE_SITE_PYTHON")
    return subprocess.run(
        [python, "-m", "mkdocs", "build", "--strict", "--site-dir", str(output)],
        cwd=tree,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_it_is_built_without_a_broken_link(tmp_path: Path) -> None:
    done = build(REPOSITORY, tmp_path)
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "index.html").read_text()
    # A page, a page from outside docs/, a file that is no page.
    assert 'href="tutorial/"' in home and 'href="contributing/"' in home
    assert re.search(r'href="https://[^"]+/edgecompile/blob/main/LICENSE"', home)
    reference = (tmp_path / "reference" / "index.html").read_text()
    for name in ("build", "Bundle.open", "Model.run", "PlanOptions"):
        assert f'id="edgecompile.{name}"' in reference
    assert 'id="edgecompile.Model.bind"' not in reference
    # Roles are links, and examples are code.
    assert not re.search(r":(func|class):|Example:", reference)
    assert "\\|" not in (tmp_path / "cli" / "index.html").read_text()
    # Lists, links and bold text that Python-Markdown reads otherwise than GitHub does.
    for page in tmp_path.rglob("index.html"):
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        for paragraph in re.findall(r"<p>(.*?)</p>", text, re.DOTALL):
            assert not re.search(r"\n *[*-] |\]\(|\*\*|```", paragraph), (page, paragraph)


@pytest.mark.slow
def test_a_broken_link_or_anchor_fails_the_build(tmp_path: Path) -> None:
    for item in REPOSITORY.iterdir():
        if item.name in ("docs", "scripts"):
            shutil.copytree(item, tmp_path / item.name)
        elif not item.name.startswith("."):
            (tmp_path / item.name).symlink_to(item)
    with (tmp_path / "docs" / "glossary.md").open("a") as page:
        page.write("\n[file](../no-file.h), [page](nowhere.md), [anchor](errors.md#nothing)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for name in ("no-file.h", "nowhere.md", "#nothing"):
        assert name in done.stderr
