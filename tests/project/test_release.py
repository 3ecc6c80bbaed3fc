"""scripts/release: what it refuses before it builds anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import edgecompile

REPOSITORY = Path(__file__).resolve().parents[2]
DATED = f"## {edgecompile.__version__} - 2026-11-28\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that passes every check but the one that a test breaks; nothing to build is in it."""
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")
    (tmp_path / "edgecompile").mkdir()
    shutil.copy(REPOSITORY / "edgecompile" / "__init__.py", tmp_path / "edgecompile")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{DATED}")
    (tmp_path / "SECURITY.md").write_text("Contact: security@example.com\n")
    text = (REPOSITORY / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text.replace("/OWNER/", "/edgecompile/"))
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(tree: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Tests", "-c", "user.email=tests@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=tree, check=True)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "State of a test", "--no-verify")


def refusal(tree: Path) -> str:
    command = [str(tree / "scripts" / "release")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and not (tree / "dist").exists()
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("CHANGELOG.md", " - 2026-11-28", " - unreleased", "has no dated section"),
        ("SECURITY.md", "security@example.com", "(no address yet)", "has no contact"),
        ("pyproject.toml", "github.com/edgecompile/", "github.com/OWNER/", "names OWNER"),
    ],
)
def test_a_placeholder_is_refused(tree: Path, file: str, old: str, new: str, problem: str) -> None:
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new))
    commit(tree)
    said = refusal(tree)
    assert problem in said and "1 problems" in said


def test_changes_and_an_existing_tag_are_refused(tree: Path) -> None:
    git(tree, "tag", f"v{edgecompile.__version__}")
    (tree / "new.py").touch()
    said = refusal(tree)
    assert "aren't committed" in said and "exists" in said and "2 problems" in said
