"""Groups of options in the help of commands that have many: first the few that most users need."""

from __future__ import annotations

from typing import TypeAlias

import click

#: Headings, each with its options by their long flags, in the order of the help.
Groups: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]

_TRAFFIC = ("--tokenizer", "--from-stats")
_BUCKETS = (
    "--max-length",
    "--mode",
    "--assume-paddable",
    "--buckets",
    "--max-buckets",
    "--max-size",
    "--max-build-time",
    "--price-per-bucket",
    "--runs",
)
_COSTS = ("--calibration", "--measure-again", "--threads", "--seed")
_MODEL = (
    "--task",
    "--pooling",
    "--normalize",
    "--softmax",
    "--token-type-ids",
    "--image-size",
    "--max-context",
    "--cache-precision",
    "--lookup",
    "--fixed-input",
    "--input-shape",
    "--state",
)
_COMMON = ("--json", "--quiet", "--debug", "--help")

_BUILD: Groups = (
    ("Most used", ("--target", "--lengths", "--texts", "--output", "--batch")),
    ("Traffic", _TRAFFIC),
    ("Model", _MODEL),
    ("Buckets", ("--quick", "--plan", *_BUCKETS)),
    ("Costs", _COSTS),
    (
        "Precision and backend",
        ("--precision", "--max-error", "--max-perplexity-ratio", "--backend", "--profile"),
    ),
    ("Targets with a GPU", ("--jetpack", "--alternatives", "--no-fallback")),
    ("Bundle", ("--prefix", "--texts-at-once", "--no-tokenizer", "--force")),
    (
        "Build host",
        ("--work-dir", "--keep-work", "--jobs", "--on", "--no-emulation", "--untested-torch"),
    ),
    ("Output and help", ("--verbose", *_COMMON)),
)
_PLAN: Groups = (
    ("Most used", ("--model", "--target", "--lengths", "--texts", "--output")),
    ("Traffic", _TRAFFIC),
    ("Model", ("--batch", *_MODEL)),
    ("Buckets", _BUCKETS),
    ("Costs", ("--cost-points", "--calibration-bundle", *_COSTS)),
    (
        "Precision and backend",
        ("--precision", "--max-error", "--max-perplexity-ratio", "--backend"),
    ),
    ("Build host", ("--work-dir", "--jobs", "--on", "--untested-torch")),
    ("Output and help", ("--report", *_COMMON)),
)
_SERVE: Groups = (
    ("Most used", ("--host", "--port", "--threads", "--api-keys", "--slo")),
    ("Interfaces", ("--grpc-port", "--cors-origin", "--token-ids", "--lookup")),
    ("Scheduling and statistics", ("--costs", "--stats")),
    (
        "Restarts and replacement",
        ("--watch", "--spare", "--stuck-after", "--drain-delay", "--drain-timeout"),
    ),
    (
        "Limits of requests",
        (
            "--max-body-bytes",
            "--max-pending-bytes",
            "--max-elements",
            "--max-texts",
            "--max-characters",
            "--max-queue",
            "--max-connections",
            "--max-generations",
            "--max-conversations",
        ),
    ),
    (
        "Timeouts of connections",
        ("--header-timeout", "--body-timeout", "--idle-timeout", "--write-timeout"),
    ),
    ("Output and help", ("--json", "--debug", "--help")),
)
GROUPS: dict[str, Groups] = {"build": _BUILD, "plan": _PLAN, "serve": _SERVE}


class GroupedOptions(click.Command):
    """A base of commands whose help prints the options under the headings of :data:`GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                rows[max(parameter.opts, key=len)] = record
        assert self.name is not None
        # An option that no group names is printed last, rather than lost.
        grouped = {flag for _, flags in GROUPS[self.name] for flag in flags}
        rest = tuple(flag for flag in rows if flag not in grouped)
        for title, flags in (*GROUPS[self.name], ("Other options", rest)):
            shown = [rows[flag] for flag in flags if flag in rows]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)
