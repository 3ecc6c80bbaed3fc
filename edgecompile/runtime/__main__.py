"""``python -m edgecompile.runtime COMMAND BUNDLE``, without any other package than numpy."""

import argparse
import json
import os
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Type

from .. import __version__
from .base.errors import EdgecompileError, InputError, SelftestError
from .base.installation import refuse_mixed_wheels
from .base.limits import no_memory
from .commands.chat import add_options as add_chat_options
from .commands.generate import add_options as add_generate_options
from .commands.options import (
    add_bench_options,
    add_encode_options,
    add_finish_options,
    add_report_options,
    add_transcribe_options,
    add_tune_options,
)
from .commands.store import add_store_commands
from .format.document import shorten

INTERNAL = 70
INPUT_OUTPUT = 74
INTERRUPTED = 130
BROKEN_PIPE = 141
_HIDDEN = ("coldstart",)
# The build host's, which somebody may look for here.
_BUILDING = ("build", "plan", "export", "compile", "pack", "explain", "verify", "inspect", "drift")


def main(
    arguments: Optional[Sequence[str]] = None, parser: Optional[argparse.ArgumentParser] = None
) -> int:
    """Runs one command and returns its exit code; errors go to stderr with their hint.

    With --json a failure is an object on stdout as well, as docs/errors.md has it.

    Args:
        arguments: the arguments of the command line; None: those of this process.
        parser: the result of ``make_parser``, where another program calls the commands.
    """
    parser = parser or make_parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help(sys.stderr)
        return 2
    options = parser.parse_args(arguments)
    try:
        refuse_mixed_wheels()
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except EdgecompileError as error:
        return _fail(options, error, error.exit_code, error.message, error.hint)
    except BrokenPipeError:
        _give_up_stdout()  # its reader went away
        return BROKEN_PIPE
    except KeyboardInterrupt as error:
        return _fail(options, error, INTERRUPTED, "interrupted")
    except MemoryError as error:
        limit = no_memory(options.bundle or "info")
        return _fail(options, error, limit.exit_code, limit.message, limit.hint)
    except OSError as error:
        return _fail(options, error, INPUT_OUTPUT, shorten(error, 400))
    except ImportError:  # of numpy or torch; the build host's command line knows the cure
        raise
    except Exception as error:
        text = "a bug in edgecompile: {}: {}".format(type(error).__name__, shorten(error, 400))
        hint = "run it again with --debug and report the traceback to the maintainers"
        return _fail(options, error, INTERNAL, text, hint)


def _fail(
    options: argparse.Namespace,
    error: BaseException,
    code: int,
    message: str,
    hint: Optional[str] = None,
) -> int:
    """Tells the person what went wrong, and with --json the script; raises it with --debug."""
    entry = {"code": code, "class": type(error).__name__, "message": message, "hint": hint}
    try:
        if options.json:
            print(json.dumps({"error": entry}, indent=1))
        sys.stdout.flush()
    except OSError:
        _give_up_stdout()
    if options.debug:
        raise error
    print("error: " + message, file=sys.stderr)
    if hint:
        print("hint: " + hint, file=sys.stderr)
    return code


def _give_up_stdout() -> None:
    """Keeps the interpreter from flushing into it again at exit, and from failing by that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Says of a command that there isn't where it is."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            names = [name for name in action.choices if name not in _HIDDEN]
            if value in _BUILDING:
                cure = "that is for the build host: edgecompile {}".format(value)
            else:
                cure = "commands: " + ", ".join(names)
            self.error("no such command {!r}; {}".format(value, cure))
        super()._check_value(action, value)


def make_parser(
    prog: str = "python -m edgecompile.runtime",
    bundle: Optional[str] = None,
    kind: Type[argparse.ArgumentParser] = _Parser,
) -> argparse.ArgumentParser:
    """The parser of the arguments.

    Args:
        prog: the program's name in help texts.
        bundle: the bundle of the commands; None: the first argument of each.
        kind: the class of the parsers.
    """
    parser = kind(prog=prog, description="Looks at and runs edgecompile bundles.")
    parser.add_argument("--version", action="version", version="edgecompile " + __version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Any, text: str, verify: str) -> Any:
        listed: Dict[str, Any] = {} if name in _HIDDEN else {"help": text}
        sub = commands.add_parser(name, description=text, **listed)
        sub.set_defaults(command=command)
        if bundle is None:
            sub.add_argument("bundle", metavar="BUNDLE", nargs="?" if name == "info" else None)
        else:
            sub.set_defaults(bundle=bundle)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        sub.add_argument("--variant", metavar="NAME", help="use this variant, not the best one")
        if name not in ("info", "finish", "tune", "report", "bench"):
            sub.add_argument("--threads", metavar="N", type=int, help="use N threads for a run")
        if name not in ("info", "finish", "tune"):
            sub.add_argument(
                "--verify",
                choices=("fast", "auto", "full"),
                default=verify,
                help="hash these files first (default: {})".format(verify),
            )
        return sub

    info = add("info", _info, "Show what a bundle holds and what fits this machine.", "auto")
    info.add_argument("--host", action="store_true", help="describe this machine")
    selftest = add("selftest", _selftest, "Check all hashes and the golden vectors.", "full")
    selftest.add_argument("--cases", metavar="DIR", help="run the <bucket>-<case>.npz of a folder")
    bench = add("bench", _bench, "Measure time per length, cold start and memory.", "auto")
    add_bench_options(bench)
    report = add("report", _report, "Test and time a bundle here; write a file to post.", "full")
    add_report_options(report)
    generate = add("generate", _generate, "Generate text after prompts, as it is made.", "auto")
    add_generate_options(generate)
    chat = add("chat", _chat, "Talk to a language model, a line at a time.", "auto")
    add_chat_options(chat)
    run = add("run", _run, "Run inputs of a file once.", "auto")
    run.add_argument(
        "--inputs",
        metavar="FILE",
        required=True,
        help="read the inputs: .npz with an array for each, .npy for one if the others have defaults, "
        ".json object",
    )
    run.add_argument("--output", metavar="FILE", help="write the outputs as .npz")
    encode = add("encode", _encode, "Run texts, with the bundle's tokenizer.", "auto")
    add_encode_options(encode)
    transcribe = add("transcribe", _transcribe, "Write down a recording.", "auto")
    add_transcribe_options(transcribe)
    finish = add("finish", _finish, "Build this device's TensorRT engine and test it.", "full")
    add_finish_options(finish)
    tune = add("tune", _tune, "Choose the programs that are fastest on this GPU.", "full")
    add_tune_options(tune)
    cold = add("coldstart", _coldstart, "One cold start, for bench.", "auto")
    cold.add_argument("--since", type=int, required=True)
    cold.add_argument("--length", type=int)
    cold.add_argument("--loads", action="store_true")
    if bundle is None:  # a bundle's own runtime can't vouch for it
        add_store_commands(commands, _say, _show)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(options: argparse.Namespace, report: Dict[str, Any], lines: List[str]) -> None:
    if options.json:
        print(json.dumps(report, indent=1, allow_nan=False))
    else:
        # Texts of a bundle: no escape sequence of theirs reaches the terminal.
        print("\n".join(_printable(line) for text in lines for line in text.split("\n")))


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in line)


def _info(options: argparse.Namespace) -> int:
    from .commands.info import describe_bundle, format_bundle, format_host
    from .cpu.host import describe_host

    if options.bundle is None:
        if not options.host:
            raise EdgecompileError("info needs a BUNDLE, or --host")
        host = describe_host().to_json()
        _show(options, {"host": host}, format_host(host))
        return 0
    report = describe_bundle(options.bundle, options.variant)
    lines = format_host(report["host"]) if options.host else []
    _show(options, report, lines + format_bundle(report))
    return 0


def _opening(options: argparse.Namespace) -> Dict[str, Any]:
    """The arguments of ``open_bundle``."""
    return {key: getattr(options, key) for key in ("threads", "variant", "verify")}


def _selftest(options: argparse.Namespace) -> int:
    from .commands.selftest import format_selftest, run_selftest

    report = run_selftest(options.bundle, cases=options.cases, say=_say, **_opening(options))
    _show(options, report, format_selftest(report))
    return 0 if report["ok"] else SelftestError.exit_code


def _generate(options: argparse.Namespace) -> int:
    from .commands.generate import run_generate

    return _write_text(options, run_generate)


def _chat(options: argparse.Namespace) -> int:
    from .commands.chat import run_chat

    return _write_text(options, run_chat)


def _write_text(options: argparse.Namespace, command: Any) -> int:
    def show(text: str) -> None:
        if not options.json:
            print(text, end="", flush=True)

    report, lines = command(options, show, _opening(options))
    if options.json:
        _show(options, report, [])
    else:
        for line in lines:
            _say(line)
    return 0


def _transcribe(options: argparse.Namespace) -> int:
    from .commands.transcribe import run_transcribe

    return _write_text(options, run_transcribe)


def _encode(options: argparse.Namespace) -> int:
    from .commands.encode import encode_bundle, format_encode, read_texts

    report = encode_bundle(
        options.bundle,
        read_texts(options.text, options.file),
        prompt=options.prompt,
        **_opening(options),
    )
    cut = sum(entry["truncated"] for entry in report["texts"])
    if cut:
        _say("{} of {} texts were cut".format(cut, len(report["texts"])))
    _show(options, report, format_encode(report))
    return 0


def _run(options: argparse.Namespace) -> int:
    from .commands.run import format_run, run_file

    report = run_file(options.bundle, options.inputs, output=options.output, **_opening(options))
    _show(options, report, format_run(report))
    return 0


def _how(options: argparse.Namespace) -> Dict[str, Any]:
    """The arguments for opening and running a bundle, which every kind of measurement takes."""
    how = {"seconds": options.seconds, "seed": options.seed, "say": _say}
    return {**_opening(options), **how}


def _lengths(options: argparse.Namespace) -> Optional[Dict[int, int]]:
    from .measure.workload import read_lengths

    return None if options.lengths is None else read_lengths(options.lengths)


def _bench(options: argparse.Namespace) -> int:
    counts = options.threads
    if len(counts) > 1 and not options.profile:
        hint = "give one number, or add --profile"
        raise InputError("--threads takes several numbers with --profile only", hint)
    options.threads = counts[0] if counts else None
    names = ("profile", "calibrate", "serving")
    flags = ["--" + name for name in names if getattr(options, name)]
    if len(flags) > 1:
        raise InputError("{} don't go together".format(" and ".join(flags)))
    if options.lengths is not None and flags and not options.profile:
        hint = "leave --lengths out: the bundle says what is run, or its buckets do"
        raise InputError("--lengths and {} don't go together".format(flags[0]), hint)
    if options.calibrate is not None:
        if options.most_error is not None and not options.error:
            raise InputError("--most-error goes with --error", "add --error, such as --error 0.005")
        return _calibrate(options)
    for name in ("error", "most_error"):
        if getattr(options, name) not in (None, 0):
            raise InputError("--{} goes with --calibrate".format(name.replace("_", "-")))
    if options.serving is not None:
        return _measure_serving(options)
    if options.profile:
        return _profile(options, counts)
    from .measure.bench import format_bench, run_bench

    report = run_bench(
        options.bundle, lengths=_lengths(options), cold_runs=options.cold_runs, **_how(options)
    )
    _show(options, report, format_bench(report))
    return 0


def _profile(options: argparse.Namespace, counts: Sequence[int]) -> int:
    from .measure.profile import profile_bundle
    from .measure.profile_table import format_profile, format_scaling

    if len(counts) < 2:
        report = profile_bundle(options.bundle, lengths=_lengths(options), **_how(options))
        _show(options, report, format_profile(report))
        return 0
    reports = []
    for count in counts:
        how = {**_how(options), "threads": count}
        reports.append(profile_bundle(options.bundle, lengths=_lengths(options), **how))
    _show(options, {"by_threads": reports}, format_scaling(reports))
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from .measure.calibrate import calibrate_bundle, format_calibration

    report = calibrate_bundle(
        options.bundle,
        options.calibrate,
        cold_runs=options.cold_runs,
        error=options.error,
        most_error=options.most_error,
        **_how(options),
    )
    _show(options, report, format_calibration(report))
    return 0


def _measure_serving(options: argparse.Namespace) -> int:
    from .measure.serving import measure_serving

    report = measure_serving(options.bundle, options.serving, **_how(options))
    lines = ["{} threads, {} x {}: {:g} ms".format(*point) for point in report.get("points", ())]
    if "texts" in report:
        runs = report["texts"]
        lines += ["a run of a prompt, tokens: {}: {:g} ms".format(*run) for run in runs["prompts"]]
        lines += [
            "a run for the next tokens, texts: {}: {:g} ms".format(*run) for run in runs["steps"]
        ]
    _show(options, report, lines)
    return 0


def _report(options: argparse.Namespace) -> int:
    from .commands.report import format_report, make_report

    report = make_report(
        options.bundle,
        onnx=options.onnx,
        threads=options.threads,
        seconds=options.seconds,
        seed=options.seed,
        output=options.output,
        say=_say,
        variant=options.variant,
        verify=options.verify,
    )
    _show(options, report, format_report(report))
    return 0 if report["selftest"]["ok"] else SelftestError.exit_code


def _finish(options: argparse.Namespace) -> int:
    from .finish.finish import finish_bundle, format_finish
    from .finish.maker import Options

    if options.workspace is not None and options.workspace < 1:
        raise InputError("--workspace is {}, must be at least 1 byte".format(options.workspace))
    settings = Options(
        variant=options.variant,
        workspace=options.workspace,
        level=options.level,
        force=options.force,
        debug=options.debug,
    )
    report = finish_bundle(options.bundle, settings, say=_say)
    _show(options, report, format_finish(report))
    return 0


def _tune(options: argparse.Namespace) -> int:
    from .measure.tune import format_tune, tune_bundle

    report = tune_bundle(
        options.bundle,
        variant=options.variant,
        seconds=options.seconds,
        force=options.force,
        say=_say,
    )
    _show(options, report, format_tune(report))
    return 0


def _coldstart(options: argparse.Namespace) -> int:
    from .measure.coldstart import cold_load, cold_start

    if options.loads:
        print(json.dumps(cold_load(options.bundle, **_opening(options))))
        return 0
    report = cold_start(
        options.bundle, options.length, options.since, time.monotonic_ns(), **_opening(options)
    )
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
