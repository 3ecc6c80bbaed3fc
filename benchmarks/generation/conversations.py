"""Times what a conversation saves or costs on a CPU: turns, long texts, lookup, constraints, a prompt in the bundle.

    benchmarks/run conversations turns BUNDLE
    benchmarks/run conversations rows BUNDLE
    benchmarks/run conversations lookup BUNDLE
    benchmarks/run conversations constraint BUNDLE
    benchmarks/run conversations prefix BUNDLE --prefix FILE

BUNDLE is a language model's. Both sides of a ratio take turns.

- turns: the first token of a second turn in a session, beside that of the whole text.
- rows: a token behind 1,472 tokens, beside one behind 64.
- lookup: texts that copy, edit or quote docstrings of the standard library, and free ones, with lookup and without. Tokens are compared.
- constraint: a token under a JSON schema, beside one without. Each answer is checked.
- prefix: the first token of a new process whose prompt begins with the bundle's, beside a prompt as long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.hosts.identity import describe_machine, load_average
from edgecompile.runtime import open_bundle, open_tokenizer
from examples.demo.inputs import read_docstrings

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
#: The clock in seconds: wall time, or with --cpu-time that of all threads.
clock = time.perf_counter
#: Prints the milliseconds to the first token of a new process.
_FIRST_TOKEN = """
import json, sys
from benchmarks.generation.conversations import first_token
from edgecompile.runtime import open_bundle
print(first_token(open_bundle(sys.argv[1], threads=int(sys.argv[2])), json.loads(sys.argv[3])))
"""
Pair = tuple[float, float]


def timed(
    generator: Any, prompt: Sequence[int], count: int, **options: Any
) -> tuple[list[int], list[float]]:
    """New tokens, and the milliseconds of each."""
    marks, tokens = [clock()], []
    for token in generator.stream(prompt, max_new_tokens=count, do_sample=False, **options):
        tokens.append(int(token))
        marks.append(clock())
    return tokens, [(b - a) * 1e3 for a, b in pairwise(marks)]


def first_token(generator: Any, prompt: Sequence[int]) -> float:
    """Milliseconds to the first new token."""
    return timed(generator, prompt, 1, eos=())[1][0]


def random_prompt(model: Any, length: int, seed: int = 1) -> list[int]:
    """Token ids without the lowest ones, which are often special."""
    vocabulary = model.manifest.outputs[0].shape[1]
    return np.random.default_rng(seed).integers(100, vocabulary, length).tolist()


def chat_prompts(model: Any, request: str, count: int) -> list[list[int]]:
    """A request about each of ``count`` docstrings of 200 to 700 characters, in ChatML."""
    library = Path(argparse.__file__).parent
    found = (
        text
        for path in sorted(library.glob("*.py"))
        for text in read_docstrings(path.read_text(encoding="utf-8"))
        if 200 <= len(text) <= 700
    )
    tokenizer, chat = (
        open_tokenizer(model),
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    )
    texts = [chat.format(request.format(text)) for text in islice(found, count)]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def turns(model: Any, options: argparse.Namespace) -> list[Pair]:
    """A second turn of 20 tokens behind 2,000, and the whole text read afresh."""
    pairs = []
    for number in range(options.rounds):
        session, prompt = model.session(), random_prompt(model, 2000, number)
        answer = session.generate(prompt, max_new_tokens=16, do_sample=False, eos=())
        whole = [*prompt, *answer, *random_prompt(model, 20, 1000 + number)]
        pairs.append((first_token(session, whole), first_token(model, whole)))
    return pairs


def rows(model: Any, options: argparse.Namespace) -> list[Pair]:
    """A token behind 1,472 tokens, and behind 64."""

    def behind(length: int, seed: int) -> float:
        _, took = timed(model, random_prompt(model, length, seed), 33, eos=())
        return statistics.median(took[1:])

    return [(behind(1472, seed), behind(64, seed)) for seed in range(options.rounds)]


def lookup(model: Any, options: argparse.Namespace) -> dict[str, list[Pair]]:
    """Time of each token with lookup, and without, for three kinds of texts that copy and for free ones.

    Raises:
        AssertionError: lookup changed a token.
    """
    found: dict[str, list[Pair]] = {}
    for kind, request in (
        ("copied", "Repeat this text word for word: {}"),
        ("edited", "Correct the spelling of this text: {}"),
        ("extracted", "Write down the first sentence of this text: {}"),
        ("free", "Tell a story about this: {}"),
    ):
        for prompt in chat_prompts(model, request, options.texts):
            (tokens, with_), (same, without) = (
                timed(model, prompt, 96, lookup=value) for value in (True, False)
            )
            assert tokens == same, prompt
            if len(tokens) > 1:
                pair = statistics.mean(with_[1:]), statistics.mean(without[1:])
                found.setdefault(kind, []).append(pair)
    return found


def constraint(model: Any, options: argparse.Namespace) -> list[Pair]:
    """Time of each token under a JSON schema, and without; the prompts' own runs aren't counted.

    Raises:
        ValueError: an answer isn't JSON, or, as a ValidationError, not as the schema says.
    """
    import jsonschema

    tokenizer, session, pairs = open_tokenizer(model), model.session(), []
    for prompt in chat_prompts(model, "Describe as JSON: {}", options.texts):
        made = model.make_constraint(json_schema=SCHEMA)
        # The prompt runs here: forced tokens come before its run, so the first token's time isn't that of it.
        session.generate(prompt, max_new_tokens=1, eos=())
        tokens, bound = timed(session, prompt, 256, constraint=made)
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMA)
        _, free = timed(session, prompt, len(tokens), eos=())
        pairs.append((statistics.mean(bound), statistics.mean(free)))
    return pairs


def prefix(model: Any, options: argparse.Namespace) -> list[Pair]:
    """The first token of a new process behind the bundle's prompt, and behind one as long."""
    known = open_tokenizer(model).encode(options.prefix.read_text()).ids
    further = random_prompt(model, 20)

    def in_new_process(begin: list[int]) -> float:
        arguments = [options.bundle, str(options.threads), json.dumps([*begin, *further])]
        command = [sys.executable, "-c", _FIRST_TOKEN, *arguments]
        return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    return [(in_new_process(known), in_new_process(known[::-1])) for _ in range(options.rounds)]


WAYS: dict[str, Callable[[Any, argparse.Namespace], Any]] = {
    way.__name__: way for way in (turns, rows, lookup, constraint, prefix)
}


def main() -> int:
    """Measures one of the ways, prints a line for each kind of text."""
    parser = argparse.ArgumentParser(prog="benchmarks/run conversations", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("way", choices=list(WAYS))
    add("bundle", type=Path)
    add("--threads", type=int, default=2, help="of the bundle (default 2)")
    add("--rounds", type=int, default=5, help="of turns, rows and prefix (default 5)")
    add("--texts", type=int, default=50, help="of lookup and constraint (default 50)")
    add("--prefix", type=Path, help="the text that the bundle was built with")
    add("--cpu-time", action="store_true", help="CPU time, for a busy machine; not of prefix")
    options = parser.parse_args()
    if options.cpu_time:
        global clock
        clock = time.process_time
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
