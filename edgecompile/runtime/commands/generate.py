"""``python -m edgecompile.runtime generate``: tokens from the command line, as they are made."""

import argparse
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Tuple

from ..base.errors import InputError
from ..format.document import shorten
from ..text.stream import TextStream

MAX_IDS_BYTES = 64 << 20


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``generate``, beside those that every command has."""
    add = command.add_argument
    add(
        "--text",
        metavar="TEXT",
        action="append",
        default=[],
        help="go on from this prompt; may be given several times. Needs the Python package tokenizers",
    )
    add("--ids", metavar="N,N,...", help="go on from these token ids; text is printed as ids then")
    add(
        "--ids-file",
        metavar="FILE",
        help="read a prompt per line, ids separated by commas or spaces; - reads standard input",
    )
    add_sampling_options(command)
    add(
        "--stop",
        metavar="N,N,...",
        action="append",
        default=[],
        help="end after these token ids in a row; may be given several times",
    )
    add(
        "--stop-text",
        metavar="TEXT",
        action="append",
        default=[],
        help="end the new text before TEXT; may be given several times",
    )
    add("--ignore-eos", action="store_true", help="go on after a token that ends a text")


def add_sampling_options(command: argparse.ArgumentParser) -> None:
    """The options of each command that makes new tokens."""
    add = command.add_argument
    add("--max-new-tokens", metavar="N", type=int, help="make at most N tokens")
    add(
        "--temperature",
        metavar="X",
        type=float,
        help="divide logits by X before sampling; 0 takes the likeliest token",
    )
    add("--top-k", metavar="N", type=int, help="sample from the N likeliest tokens; 0: from all")
    add(
        "--top-p",
        metavar="X",
        type=float,
        help="sample from the likeliest tokens that together have the probability X",
    )
    add(
        "--repetition-penalty",
        metavar="X",
        type=float,
        help="make tokens of the text so far less likely; 1 changes nothing",
    )
    add(
        "--seed",
        metavar="N",
        type=int,
        help="set the random seed; the same one gives the same text",
    )
    add("--greedy", action="store_true", help="take the likeliest token each time")
    add(
        "--lookup",
        action="store_true",
        help="guess tokens from the text so far, and check several in one run; no token changes. For bundles "
        "built with --lookup",
    )
    add(
        "--json-schema",
        metavar="FILE",
        help="make JSON that fits the JSON schema in FILE; needs the Python package llguidance",
    )
    add(
        "--regex",
        metavar="REGEX",
        help="make text that matches REGEX as a whole; needs the Python package llguidance",
    )


def read_sampling(options: argparse.Namespace) -> Dict[str, Any]:
    """The arguments of ``Model.generate`` that ``add_sampling_options`` adds options for."""
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed")
    sampling = {name: getattr(options, name) for name in names}
    return {
        **sampling,
        "do_sample": False if options.greedy else None,
        "lookup": options.lookup,
    }


def read_grammar(options: argparse.Namespace) -> Dict[str, Any]:
    """The arguments of ``Model.make_constraint`` by the options above; none where there are none.

    Raises:
        InputError: the file can't be read, or both are given.
    """
    file, regex = options.json_schema, options.regex
    if file is not None and regex is not None:
        raise InputError("--json-schema and --regex don't go together")
    if file is None:
        return {} if regex is None else {"regex": regex}
    from ..text.grammar import MAX_SCHEMA_BYTES  # here: it imports numpy

    try:
        with open(file, encoding="utf-8") as stream:
            return {"json_schema": stream.read(MAX_SCHEMA_BYTES + 1)}
    except OSError as error:
        raise InputError("{}: can't be read: {}".format(file, error.strerror)) from None
    except UnicodeDecodeError:
        raise InputError("{}: isn't text in UTF-8".format(file)) from None


def run_generate(
    options: argparse.Namespace, show: Callable[[str], None], how: Mapping[str, Any]
) -> Tuple[Dict[str, Any], List[str]]:
    """Generates for each prompt; ``show`` gets the ids of a text as they are made.

    ``how`` has threads, variant and verify of ``open_bundle``.

    Returns:
        The report, plain JSON values: "bundle", "name", "variant", "threads" and "texts" (each with
        prompt, tokens, the new text if prompts or stops are texts, finish_reason, where an encoder
        reads it the source, first_ms until the first token and token_ms, the mean of the further ones,
        or null), and lines for people, who have seen the tokens.

    Raises:
        InputError: the prompts or the options are wrong.
    """
    from ..model.open_bundle import open_bundle  # here: other commands needn't wait for it
    from ..text.encoder import open_tokenizer

    id_lists, grammar = _read_prompts(options), read_grammar(options)
    arguments: Dict[str, Any] = {
        **read_sampling(options),
        "stop": [_read_ids(text, "--stop") for text in options.stop],
        "eos": () if options.ignore_eos else None,
    }
    texts, lines = [], []
    with open_bundle(options.bundle, **how) as model:
        # One session: prompts that begin alike share what was run of them.
        session = model.session()
        tokenizer: Any = open_tokenizer(model) if options.text or options.stop_text else None
        prompts = id_lists or [tokenizer.encode(text).ids for text in options.text]
        # All are judged before the first one runs.
        streams = []
        for prompt in prompts:
            if grammar:
                arguments["constraint"] = model.make_constraint(**grammar)
            streams.append(session.stream(prompt, **arguments))
        for index, (stream, prompt) in enumerate(zip(streams, prompts)):
            text = None if tokenizer is None else TextStream(tokenizer, stream, options.stop_text)
            times = [time.perf_counter()]
            for token in stream:
                times.append(time.perf_counter())
                piece = "" if text is None else text.read(token)
                if options.text:
                    show(printable(piece))
                else:
                    show(" {}".format(token) if len(times) > 2 else str(token))
            show("\n")
            texts.append(_describe(stream, times))
            if text is not None:
                texts[-1]["text"] = text.text
            if stream.source is not None:
                texts[-1]["source"] = prompt
            lines.append(_line(index, texts[-1], options))
        info = model.info
    report = {
        "bundle": options.bundle,
        "name": info["name"],
        "variant": info["variant"],
        "threads": info["threads"],
        "texts": texts,
    }
    return report, lines


def _describe(stream: Any, times: List[float]) -> Dict[str, Any]:
    further = len(times) - 2
    return {
        "prompt": stream.prompt,
        "reused": stream.reused,
        "tokens": stream.tokens,
        "finish_reason": stream.finish_reason,
        "first_ms": (times[1] - times[0]) * 1e3,
        "token_ms": (times[-1] - times[1]) * 1e3 / further if further else None,
    }


def printable(text: str) -> str:
    """A piece of new text without what sends escape sequences to a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def _line(index: int, text: Dict[str, Any], options: argparse.Namespace) -> str:
    rate = text["token_ms"]
    default = options.max_new_tokens is None
    ends = {
        "eos": "ended by the model",
        "stop": "stopped by --stop",
        "constraint": "complete",
        "length": "stopped by the default of --max-new-tokens"
        if default
        else "stopped by --max-new-tokens",
    }
    return "text {}: {} new tokens after a prompt of {} ({} cached), {}; first after {:.1f} ms{}".format(
        index,
        len(text["tokens"]),
        len(text["prompt"]),
        text["reused"],
        ends[text["finish_reason"]],
        text["first_ms"],
        "" if rate is None else ", then {:.2f} ms each".format(rate),
    )


def _read_prompts(options: argparse.Namespace) -> List[List[int]]:
    """The prompts that are token ids; none where they are texts."""
    ids, file = options.ids, options.ids_file
    if bool(options.text) + (ids is not None) + (file is not None) != 1:
        raise InputError("give prompts as one of --text, --ids and --ids-file")
    if options.text:
        return []
    if ids is not None:
        return [_read_ids(ids, "--ids")]
    assert file is not None
    try:
        if file == "-":
            text = sys.stdin.read(MAX_IDS_BYTES + 1)
        else:
            with open(file, encoding="utf-8", errors="replace") as stream:
                text = stream.read(MAX_IDS_BYTES + 1)
    except OSError as error:
        raise InputError("{}: can't be read: {}".format(file, error.strerror)) from None
    if len(text) > MAX_IDS_BYTES:
        raise InputError("{}: larger than {} bytes".format(file, MAX_IDS_BYTES))
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError("{}: holds no prompt".format(file))
    return [_read_ids(line, "{}, line {}".format(file, number)) for number, line in lines]


def _read_ids(text: str, where: str) -> List[int]:
    words = text.replace(",", " ").split()
    bad = [word for word in words if not (word.isdigit() and word.isascii() and len(word) < 19)]
    if bad or not words:
        example = "{!r}".format(shorten(bad[0])) if bad else "none"
        raise InputError("{}: must be token ids, such as 1,2,3; found {}".format(where, example))
    return [int(word) for word in words]
