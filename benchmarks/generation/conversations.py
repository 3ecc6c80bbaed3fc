"""Times what a conversation saves or costs on a CPU: turns, long texts, lookup, constraints, a prompt in the bundle.

    benchmarks/run conversations turns BUNDLE
    benchmarks/run conversations rows BUNDLE
    benchmarks/run conversations lookup BUNDLE
    benchmarks/run conversations constraint BUNDLE
    benchmarks/run conversations prefix BUNDLE --prefix FILE

BUNDLE is a language model's. Both sides of a ratio take turns.

- turns: the first token of a second turn in a session, beside that of the whole text.
- rows: a token behind 1,472 tokens, beside one behind 64.
- lookup: texts that copy docstrings of the standard library, and free ones, with lookup and without. Tokens are compared.
- constraint: a token under a JSON schema, beside one without. Each answer is checked.
- prefix: the first token of a new process whose prompt begins with the bundle's, beside a prompt as long.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.hosts.identity import describe_machine, load_average
from edgecompile.runtime import open_bundle

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "purpose": {"type": "string", "maxLength": 120},
        "arguments": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
    },
    "required": ["name", "purpose", "arguments"],
    "additionalProperties": False,
}
Pair = tuple[float, float]


def first_token(generator: Any, prompt: Sequence[int]) -> float:
    """Milliseconds to the first new token."""
    begin = time.perf_counter()
    next(iter(generator.stream(prompt, max_new_tokens=2, do_sample=False, eos=())))
    return (time.perf_counter() - begin) * 1e3


def timed(
    generator: Any, prompt: Sequence[int], count: int, **options: Any
) -> tuple[list[int], list[float]]:
    """New tokens, and the milliseconds of each behind the first."""
    marks, tokens = [], []
    for token in generator.stream(prompt, max_new_tokens=count, do_sample=False, **options):
        tokens.append(int(token))
        marks.append(time.perf_counter())
    return tokens, [(b - a) * 1e3 for a, b in pairwise(marks)]


def random_prompt(model: Any, length: int, seed: int = 1) -> list[int]:
    """Token ids without the lowest ones, which are often special."""
    vocabulary = model.manifest.outputs[0].shape[1]
    return np.random.default_rng(seed).integers(100, vocabulary, length).tolist()


def turns(model: Any, options: argparse.Namespace) -> list[Pair]:
    """A second turn of 20 tokens behind 2,000, and the whole text read afresh."""
    pairs = []
    for number in range(options.rounds):
        session = model.session()
        prompt = random_prompt(model, 2000, number)
        answer = session.generate(prompt, max_new_tokens=16, do_sample=False, eos=())
        whole = [*prompt, *answer, *random_prompt(model, 20, 1000 + number)]
        pairs.append((first_token(session, whole), first_token(model, whole)))
    return pairs


def rows(model: Any, options: argparse.Namespace) -> list[Pair]:
    """A token behind 1,472 tokens, and behind 64."""
    pairs = []
    for number in range(options.rounds):
        both = (
            timed(model, random_prompt(model, length, number), 33, eos=())[1]
            for length in (1472, 64)
        )
        long, short = map(statistics.median, both)
        pairs.append((long, short))
    return pairs


def docstrings(count: int) -> list[str]:
    """Docstrings of 200 to 700 characters, each in one line."""
    import argparse as a
    import csv
    import logging
    import subprocess as s
    import tarfile
    import textwrap
    import threading
    import zipfile

    found = []
    for module in (
        a,
        csv,
        logging,
        s,
        tarfile,
        textwrap,
        threading,
        zipfile,
        json,
        inspect,
        statistics,
    ):
        for _, item in inspect.getmembers(module):
            members = (
                [item, *(m for _, m in inspect.getmembers(item))]
                if inspect.isclass(item)
                else [item]
            )
            for member in members:
                text = " ".join((getattr(member, "__doc__", None) or "").split())
                if callable(member) and 200 <= len(text) <= 700 and text not in found:
                    found.append(text)
    return found[:count]


def lookup(model: Any, options: argparse.Namespace) -> dict[str, list[Pair]]:
    """Time of each token with lookup, and without, for texts that copy and for free ones.

    Raises:
        AssertionError: lookup changed a token.
    """
    import edgecompile.runtime as runtime

    tokenizer = runtime.open_tokenizer(model)
    found: dict[str, list[Pair]] = {"copied": [], "free": []}
    for kind, ask in (
        ("copied", "Repeat this text word for word: {}"),
        ("free", "Tell a story about this: {}"),
    ):
        for text in docstrings(options.texts):
            prompt = tokenizer.encode(chat_text(ask.format(text)), add_special_tokens=False).ids
            with_, without = (timed(model, prompt, 96, lookup=value) for value in (True, False))
            assert with_[0] == without[0], text
            if without[1]:
                found[kind].append(
                    (sum(with_[1]) / len(with_[1]), sum(without[1]) / len(without[1]))
                )
    return found


def chat_text(message: str) -> str:
    """The message in ChatML."""
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"


def constraint(model: Any, options: argparse.Namespace) -> list[Pair]:
    """Time of each token under a JSON schema, and without.

    Raises:
        ValueError: an answer isn't JSON, or, as a ValidationError, not as the schema says.
    """
    import jsonschema

    import edgecompile.runtime as runtime

    tokenizer = runtime.open_tokenizer(model)
    pairs = []
    for text in docstrings(options.texts):
        prompt = tokenizer.encode(
            chat_text(f"Describe as JSON: {text}"), add_special_tokens=False
        ).ids
        tokens, bound = timed(
            model, prompt, 256, constraint=model.make_constraint(json_schema=SCHEMA)
        )
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMA)
        _, free = timed(model, prompt, len(tokens), eos=())
        pairs.append((sum(bound) / len(bound), sum(free) / len(free)))
    return pairs


def prefix(model: Any, options: argparse.Namespace) -> list[Pair]:
    """The first token of a new process behind the bundle's prompt, and behind one as long."""
    import edgecompile.runtime as runtime

    tokenizer = runtime.open_tokenizer(model)
    known = tokenizer.encode(options.prefix.read_text()).ids
    further = random_prompt(model, 20)
    pairs = []
    for _ in range(options.rounds):
        both = (_in_new_process(options, [*begin, *further]) for begin in (known, known[::-1]))
        begun, read = both
        pairs.append((begun, read))
    return pairs


def _in_new_process(options: argparse.Namespace, prompt: list[int]) -> float:
    script = (
        "import json, sys\n"
        "from benchmarks.generation.conversations import first_token\n"
        "from edgecompile.runtime import open_bundle\n"
        "model = open_bundle(sys.argv[1], threads=int(sys.argv[2]))\n"
        "print(first_token(model, json.loads(sys.argv[3])))\n"
    )
    arguments = [str(options.bundle), str(options.threads), json.dumps(prompt)]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout.splitlines()[-1])


WAYS: dict[str, Callable[[Any, argparse.Namespace], Any]] = {
    way.__name__: way for way in (turns, rows, lookup, constraint, prefix)
}


def main() -> int:
    """Measures one of the ways, prints a line for each kind of text."""
    parser = argparse.ArgumentParser(prog="benchmarks/run conversations", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("way", choices=list(WAYS))
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=2, help="of the bundle (default 2)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of turns, rows and prefix (default 5)"
    )
    parser.add_argument(
        "--texts", type=int, default=50, help="of lookup and constraint (default 50)"
    )
    parser.add_argument("--prefix", type=Path, help="the text that the bundle was built with")
    options = parser.parse_args()
    if options.way == "prefix" and options.prefix is None:
        parser.error("prefix needs --prefix FILE")
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['usable_cpus']} CPUs, load {load_average()[0]:.2f}")
    found = WAYS[options.way](open_bundle(options.bundle, threads=options.threads), options)
    for kind, pairs in (found if isinstance(found, dict) else {options.way: found}).items():
        ratios = [a / b for a, b in pairs]
        first, second = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(
            f"{kind}: {first:.2f} ms, {second:.2f} ms, median of {len(pairs)} ratios "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
