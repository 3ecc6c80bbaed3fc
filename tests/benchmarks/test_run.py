"""benchmarks/run: what stands behind its names."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"
NAMES = re.findall(r"^#   benchmarks/run (\S+) ", (BENCHMARKS / "run").read_text(), re.MULTILINE)


def test_every_name_is_one_program() -> None:
    assert "cold-start" in NAMES
    for name in NAMES:
        (file,) = BENCHMARKS.rglob(f"{name.replace('-', '_')}.py")
        assert 'if __name__ == "__main__":' in file.read_text(), file


def test_what_docs_tell_to_run_is_there() -> None:
    """Names that ``benchmarks/run`` has, and modules where ``python -m`` starts them."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *BENCHMARKS.rglob("*.py")]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for page, text in texts.items():
        assert {*re.findall(r"benchmarks/run ([a-z][\w-]*)", text)} <= {*NAMES}, page
        for module in re.findall(r"-m (benchmarks[\w.]+)", text):
            assert (REPOSITORY / module.replace(".", "/")).with_suffix(".py").is_file(), page
