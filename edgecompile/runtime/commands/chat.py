"""``python -m edgecompile.runtime chat``: a conversation on the terminal."""

import argparse
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..base.errors import EdgecompileError, InputError
from ..format.document import shorten
from ..format.output import check_output
from .generate import add_sampling_options, printable, read_grammar, read_sampling

if TYPE_CHECKING:
    from ..text.session import TextSession

PROMPT = "> "


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``chat``, beside those that every command has."""
    add = command.add_argument
    add("--system", metavar="TEXT", help="begin with this message of the system")
    add("--load", metavar="FILE", help="go on with the conversation that --save wrote")
    add("--save", metavar="FILE", help="write the conversation to FILE when it ends")
    add_sampling_options(command)


def run_chat(
    options: argparse.Namespace, show: Callable[[str], None], how: Mapping[str, Any]
) -> Tuple[Dict[str, Any], List[str]]:
    """Answers each line of standard input; ``show`` gets prompts and pieces of answers.

    An interrupt ends the answer under way, or the conversation where there is none.

    Args:
        options: Arguments of the command line.
        show: Function that prints a piece of text.
        how: Threads, variant and verify of ``open_bundle``.

    Returns:
        The report, plain JSON values: "bundle", "name", "variant", "threads", "messages" and "answers"
        (each with prompt_tokens, reused of them, new_tokens, finish_reason, and first_ms until the first
        token), and lines for people.

    Raises:
        TokenizerError: the bundle has no tokenizer or chat template that can be used.
        ContextLengthError: the conversation has outgrown the context.
        InputError: the file to load can't be used, or that to save can't be written; or see ``Model.chat``.
        GenerationError, NativeError: see ``Model.chat``.
    """
    from ..model.open_bundle import open_bundle  # here: other commands needn't wait for it

    if options.load is not None and options.system is not None:
        hint = "leave --system out: the file says how the conversation began"
        raise InputError("--load and --system don't go together", hint)
    if options.save is not None:  # before the conversation, which would be lost
        check_output(options.save, "--save", options.bundle)
    grammar = read_grammar(options)
    messages: List[Dict[str, str]] = []
    if options.system is not None:
        messages.append({"role": "system", "content": options.system})
    answers: List[Dict[str, Any]] = []
    with open_bundle(options.bundle, **how) as model:
        session = model.session(load=options.load)
        if options.load is not None:
            messages = _read_messages(options.load, session.notes)
        try:
            for line in iter(lambda: _read_line(show), ""):
                if line.strip():
                    messages.append({"role": "user", "content": line.rstrip("\n")})
                    arguments = read_sampling(options)
                    if grammar:
                        arguments["constraint"] = model.make_constraint(**grammar)
                    answers.append(_answer(session, messages, arguments, show))
        except EdgecompileError as error:  # such as a text that didn't fit into the context
            try:
                _save(session, options.save, messages)
            except EdgecompileError as lost:
                error.message += "; the conversation is lost, too: " + lost.message
            raise
        except BaseException:
            with contextlib.suppress(EdgecompileError):  # nor is that the reason for the end
                _save(session, options.save, messages)
            raise
        _save(session, options.save, messages)
        info = model.info
    report = {
        "bundle": options.bundle,
        "name": info["name"],
        "variant": info["variant"],
        "threads": info["threads"],
        "messages": messages,
        "answers": answers,
    }
    tokens, reused = (sum(answer[key] for answer in answers) for key in ("new_tokens", "reused"))
    text = "answers: {}, tokens: {}, cached tokens of prompts: {}"
    return report, [text.format(len(answers), tokens, reused)]


def _read_line(show: Callable[[str], None]) -> str:
    """The next line; empty at the end of the input and at an interrupt."""
    if sys.stdin.isatty():
        show(PROMPT)
    try:
        return sys.stdin.readline()
    except KeyboardInterrupt:
        return ""


def _answer(
    session: "TextSession",
    messages: List[Dict[str, str]],
    arguments: Dict[str, Any],
    show: Callable[[str], None],
) -> Dict[str, Any]:
    """Answers the last message, and adds the answer to the messages; its part of the report."""
    begin = time.perf_counter()
    stream = session.stream_text(messages, **arguments)
    first = None
    try:
        for piece in stream:
            first = first or time.perf_counter()
            show(printable(piece))
    except KeyboardInterrupt:
        stream.close()
    show("\n")
    if stream.text.strip():
        messages.append({"role": "assistant", "content": stream.text})
    else:  # a template may have no way to write an empty answer
        messages.pop()
    return {
        "prompt_tokens": len(stream.tokens.prompt),
        "reused": stream.tokens.reused,
        "new_tokens": len(stream.tokens.tokens),
        "finish_reason": stream.finish_reason,
        "first_ms": None if first is None else (first - begin) * 1e3,
    }


def _save(session: "TextSession", path: Optional[str], messages: List[Dict[str, str]]) -> None:
    """Keeps the messages up to the last answer: the next one is the user's again. None: nowhere."""
    if path is None:
        return
    answered = [index for index, message in enumerate(messages) if message["role"] != "user"]
    session.save(path, {"messages": messages[: answered[-1] + 1] if answered else []})


def _read_messages(path: str, notes: Any) -> List[Dict[str, str]]:
    """The messages that ``--save`` kept with a session."""
    messages = notes.get("messages") if isinstance(notes, dict) else None
    for message in messages if isinstance(messages, list) else [None]:
        texts = message if isinstance(message, dict) else {}
        if set(texts) != {"role", "content"} or not all(type(x) is str for x in texts.values()):
            raise InputError(
                "{}: holds no conversation of this command".format(shorten(path, 1024)),
                "name a file that --save wrote",
            )
    return list(messages or [])
