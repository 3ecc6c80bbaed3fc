"""Generates with every family of models and compares each token; see scripts/zoo."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.errors import EdgecompileError
from edgecompile.runtime import open_bundle
from tests.zoo.generation_bundles import build_family, build_source_family
from tests.zoo.generation_families import (
    FAMILIES,
    LONGEST_RUN,
    LONGEST_SOURCE,
    POSITIONS,
    SOURCES,
    load_family,
)

REPOSITORY = Path(__file__).resolve().parents[2]
NEW_TOKENS = 20


@dataclass(frozen=True)
class Outcome:
    """How a family did.

    Attributes:
        result: ``equal``, ``differs``, or ``refused``.
        prompts, tokens: how many were compared.
        attention: how the program attends.
        reason: why it was refused, or the first difference.
    """

    family: str
    result: str
    prompts: int = 0
    tokens: int = 0
    attention: str = ""
    reason: str = ""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="scripts/zoo generation",
        description="Compare greedy generation with transformers' own, token by token.",
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=[*FAMILIES, *SOURCES], metavar="FAMILY", help="these families")
    add("--prompts", type=int, default=200, help="for each family (default 200)")
    add("--work", type=Path, default=REPOSITORY / "generation-out", help="where files are left")
    add("--resume", action="store_true", help="leave out families whose outcome is there")
    add("--table", type=Path, help="write the table to this file, too")
    return parser.parse_args(arguments)


def check_family(name: str, work: Path, prompts: int) -> Outcome:
    """Builds a family's bundle and compares what it generates."""

    def tell(text: str) -> None:
        print(f"{name}: {text}", file=sys.stderr, flush=True)

    try:
        tell("loading")
        loaded = load_family(name)
        way = loaded.module.way
        output, builds = work / f"{name}.ecb", work / "builds" / name
        if name in SOURCES:
            bundle = build_source_family(loaded, output, builds, step=tell)
        else:
            bundle = build_family(loaded, output, builds, padded=name == "gpt2", step=tell)
    except EdgecompileError as error:
        return Outcome(name, "refused", reason=error.message.splitlines()[0])
    attention = (way.attention or "its own") + (" with a mask" if way.mask else "")
    random = np.random.default_rng(17)
    tokens = 0
    tell(f"generating from {prompts} prompts")
    with open_bundle(bundle) as model:
        for number in range(prompts):
            if name in SOURCES:
                want, got = translate(loaded, model, random, number)
                length = 0
            else:
                want, got, length = go_on(loaded, model, random)
            if got != want:
                at = next(i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b)
                text = (
                    f"prompt {number} of {length} tokens: new token {at} is {got[at:]}, {want[at:]}"
                )
                return Outcome(name, "differs", number, tokens, attention, text)
            tokens += len(want)
    return Outcome(name, "equal", prompts, tokens, attention)


def go_on(loaded: Any, model: Any, random: np.random.Generator) -> tuple[list[int], list[int], int]:
    """Expected and actual tokens behind a random prompt, and its length."""
    length = int(random.integers(1, min(3 * LONGEST_RUN, POSITIONS - NEW_TOKENS) + 1))
    prompt = random.integers(3, 97, length).tolist()
    want = loaded.generation.greedy(prompt, NEW_TOKENS)
    got = list(model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False))
    return want, got, length


def translate(
    loaded: Any, model: Any, random: np.random.Generator, number: int
) -> tuple[list[int], list[int]]:
    """The same behind a random source; every third text begins with more than the start tokens."""
    made = loaded.generation
    sizes = {
        axis: int(random.integers(1, LONGEST_SOURCE + 1)) if axis == "length" else 1
        for axis in made.encoder.axes
    }
    source = made.encoder.make_example(sizes, seed=number)
    prompt = list(made.spec.start)
    if number % 3 == 0:
        prompt += random.integers(3, 97, int(random.integers(1, 40))).tolist()
    want = made.greedy(prompt, NEW_TOKENS, source)
    got = model.generate(
        {made.source: source[made.source].numpy()},
        decoder_input_ids=prompt,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
    )
    return want, list(got)


def table(outcomes: list[Outcome]) -> str:
    """A table in Markdown."""
    lines = [
        "| family | what is special | greedy tokens | prompts | tokens | attention |",
        "|---|---|---|---:|---:|---|",
    ]
    for item in outcomes:
        note = {**FAMILIES, **SOURCES}[item.family].note
        result = item.result if item.result == "equal" else f"{item.result}: {item.reason}"
        lines.append(
            f"| {item.family} | {note} | {result} | {item.prompts} | {item.tokens} "
            f"| {item.attention} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs what was asked for; 0 if nothing differs."""
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in options.only or [*FAMILIES, *SOURCES]:
        record = options.work / f"{name}.json"
        if options.resume and record.is_file():
            outcome = Outcome(**json.loads(record.read_text()))
        else:
            started = time.perf_counter()
            outcome = check_family(name, options.work, options.prompts)
            record.write_text(json.dumps(asdict(outcome), indent=1) + "\n")
            seconds = time.perf_counter() - started
            print(f"{name}: {outcome.result} in {seconds:.0f} s", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    text = table(outcomes)
    print(text, end="")
    if options.table is not None:
        options.table.write_text(text)
    return int(any(item.result == "differs" for item in outcomes))


if __name__ == "__main__":
    sys.exit(main())
