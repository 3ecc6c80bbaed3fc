"""``python -m edgecompile.runtime generate``: tokens from the command line, as they are made."""

import argparse
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .document import shorten
from .errors import InputError

MAX_IDS_BYTES = 64 << 20


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``generate``, beside those that every command has."""
    command.add_argument(
        "--ids",
        metavar="N,N,...",
        help="the prompt's token ids; the source's, where an encoder reads it",
    )
    command.add_argument(
        "--ids-file",
        metavar="FILE",
        help="a prompt in each line, its ids separated by commas or spaces; -: standard input",
    )
    command.add_argument("--max-new-tokens", metavar="N", type=int)
    command.add_argument("--temperature", metavar="X", type=float, help="0: the likeliest token")
    command.add_argument("--top-k", metavar="N", type=int)
    command.add_argument("--top-p", metavar="X", type=float)
    command.add_argument("--repetition-penalty", metavar="X", type=float)
    command.add_argument("--seed", metavar="N", type=int)
    command.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    command.add_argument(
        "--stop",
        metavar="N,N,...",
        action="append",
        default=[],
        help="end behind these tokens in a row; may be repeated",
    )
    command.add_argument("--ignore-eos", action="store_true", help="go on behind the end of a text")


def run_generate(
    options: argparse.Namespace, show: Callable[[str], None]
) -> Tuple[Dict[str, Any], List[str]]:
    """Generates for each prompt; ``show`` gets the ids of a text as they are made.

    Returns:
        The report, plain JSON values: "bundle", "name", "variant", "threads" and "texts" (each with
        prompt, tokens, finish_reason, where an encoder reads it the source, first_ms until the first
        token and token_ms, the mean of the
        further ones, or null), and lines for people, who have seen the tokens.

    Raises:
        InputError: the prompts or the options are wrong.
    """
    from .model import open_bundle  # here: other commands needn't wait for it

    prompts = _read_prompts(options.ids, options.ids_file)
    given: Dict[str, Any] = {
        "max_new_tokens": options.max_new_tokens,
        "do_sample": False if options.greedy else None,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "repetition_penalty": options.repetition_penalty,
        "seed": options.seed,
        "stop": [_read_ids(text, "--stop") for text in options.stop],
        "eos": () if options.ignore_eos else None,
    }
    texts, lines = [], []
    with open_bundle(
        options.bundle, threads=options.threads, variant=options.variant, verify=options.verify
    ) as model:
        # One session: prompts that begin alike share what was run of them.
        session = model.session()
        # All are judged before the first one runs.
        streams = [session.stream(prompt, **given) for prompt in prompts]
        for index, (stream, prompt) in enumerate(zip(streams, prompts)):
            times = [time.perf_counter()]
            for token in stream:
                times.append(time.perf_counter())
                show(" {}".format(token) if len(times) > 2 else str(token))
            show("\n")
            texts.append(_describe(stream, times))
            if stream.source is not None:
                texts[-1]["source"] = prompt
            lines.append(_line(index, texts[-1]))
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


def _line(index: int, text: Dict[str, Any]) -> str:
    rate = text["token_ms"]
    return "text {}: {} tokens behind {} ({} known), {}; first after {:.1f} ms{}".format(
        index,
        len(text["tokens"]),
        len(text["prompt"]),
        text["reused"],
        text["finish_reason"],
        text["first_ms"],
        "" if rate is None else ", then {:.2f} ms each".format(rate),
    )


def _read_prompts(ids: Optional[str], file: Optional[str]) -> List[List[int]]:
    if (ids is None) == (file is None):
        raise InputError("give the prompt as either --ids or --ids-file")
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
        found = "{!r}".format(shorten(bad[0])) if bad else "none"
        raise InputError("{}: must be token ids, such as 1,2,3; found {}".format(where, found))
    return [int(word) for word in words]
