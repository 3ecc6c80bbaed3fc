"""The options of commands with many of them, beside those that every command has."""

import argparse
from typing import List


def add_bench_options(command: argparse.ArgumentParser) -> None:
    """The options of ``bench``."""
    add = command.add_argument
    add("--lengths", metavar="FILE", help="read a length, or length,count, a line")
    add(
        "--seconds",
        metavar="S",
        type=float,
        default=10.0,
        help="measure for S seconds (default: 10)",
    )
    add(
        "--cold-runs", metavar="N", type=int, default=5, help="start N fresh processes (default: 5)"
    )
    add("--seed", metavar="N", type=int, default=0, help="set the random seed (default: 0)")
    add(
        "--calibrate",
        metavar="FILE",
        help="time every bucket instead, and write a calibration for edgecompile plan",
    )
    add(
        "--error",
        metavar="SHARE",
        type=float,
        default=0.0,
        help="with --calibrate, stop once the standard error of every median is at most this share of it "
        "(default: take all of --seconds)",
    )
    add(
        "--most-error",
        metavar="SHARE",
        type=float,
        help="with --error, allow a sixteenth of the distance of the quartiles where that is more, but at most this "
        "share of the median (default: that of --error)",
    )
    add(
        "--serving",
        metavar="FILE",
        help="time batches on parts of the CPUs instead, and write their costs for a server; of a language "
        "model prompts and tokens, for edgecompile simulate",
    )
    add("--profile", action="store_true", help="show which kernels take the time instead")
    add(
        "--threads",
        metavar="N",
        type=_counts,
        default=(),
        help="use N threads for a run; with --profile also several numbers, such as 1,2,4",
    )


def add_encode_options(command: argparse.ArgumentParser) -> None:
    """The options of ``encode``."""
    add = command.add_argument
    add(
        "--text",
        metavar="TEXT",
        action="append",
        default=[],
        help="run this text; may be given several times",
    )
    add("--file", metavar="FILE", help="read one text per line; - reads standard input")
    add("--prompt", metavar="NAME", help="put this prompt of the bundle before each text")


def add_finish_options(command: argparse.ArgumentParser) -> None:
    """The options of ``finish``."""
    add = command.add_argument
    add("--workspace", metavar="BYTES", type=int, help="give kernels BYTES to be tried with")
    add("--level", metavar="N", type=int, choices=range(6), help="optimize at this level")
    add(
        "--force",
        action="store_true",
        help="build again, also against predictions or for another GPU",
    )


def add_report_options(command: argparse.ArgumentParser) -> None:
    """The options of ``report``."""
    add = command.add_argument
    add("--onnx", metavar="FILE", help="time onnxruntime and openvino on this file of the model")
    add(
        "--threads",
        metavar="N,N",
        type=_counts,
        default=(),
        help="use N threads for a run (default: 1, 2, 4 to the number of CPUs)",
    )
    add(
        "--seconds",
        metavar="S",
        type=float,
        default=30.0,
        help="measure for S seconds (default: 30)",
    )
    add("--seed", metavar="N", type=int, default=0, help="set the random seed (default: 0)")
    add("--output", metavar="FILE", help="write the report as JSON")


def _counts(text: str) -> List[int]:
    try:
        return [int(count) for count in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("{!r} isn't N or N,N".format(text)) from None


def add_tune_options(command: argparse.ArgumentParser) -> None:
    """The options of ``tune``."""
    add = command.add_argument
    add(
        "--seconds",
        metavar="S",
        type=float,
        default=20.0,
        help="measure for S seconds (default: 20)",
    )
    add("--force", action="store_true", help="measure again")


def add_transcribe_options(command: argparse.ArgumentParser) -> None:
    """The options of ``transcribe``, beside those that every command has."""
    add = command.add_argument
    add("file", metavar="FILE.wav", help="the recording, of one channel at the model's rate")
    add("--language", metavar="NAME", help="name the spoken language, such as en")
    add("--task", metavar="NAME", help="transcribe, or translate into English")
    add("--max-new-tokens", metavar="N", type=int, help="make at most N tokens of a window")
    add("--no-timestamps", action="store_true", help="take a short recording as a whole")
    add(
        "--condition-on-prev-tokens",
        action="store_true",
        help="let the text of a window go on from the text before it",
    )
