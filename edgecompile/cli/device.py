"""``edgecompile selftest|run|encode|generate|chat|report``: the commands of the device's runtime, on the host.

Their options, and what reads them, are the runtime's own (``python -m edgecompile.runtime``).
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

import click

_EXAMPLES = {
    "selftest": "edgecompile selftest minilm.ecb",
    "run": "edgecompile run minilm.ecb --inputs inputs.npz --output outputs.npz",
    "encode": 'edgecompile encode minilm.ecb --text "What is a bucket?"',
    "generate": "edgecompile generate smollm.ecb --ids 1,15043,29892 --max-new-tokens 20",
    "chat": 'edgecompile chat smollm.ecb --system "Be brief."',
    "report": "edgecompile report minilm.ecb --onnx minilm.onnx --output report.json",
}


class Parser(argparse.ArgumentParser):
    """Fails as the other commands here do."""

    def error(self, message: str) -> NoReturn:
        raise click.UsageError(message, click.get_current_context(silent=True))


class HandedOver(click.Command):
    """A base of commands that show another parser's options as their own and hand all arguments over."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = set(self.get_help_option_names(ctx))
        if names & set(args) and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.args = list(args)
        return ctx.args


class _Command(HandedOver):
    """One of the runtime's commands."""

    def invoke(self, ctx: click.Context) -> Any:
        from edgecompile import torch_runtime  # noqa: F401  registers what runs torch's bundles
        from edgecompile.runtime.__main__ import main, make_parser

        assert self.name is not None
        ctx.exit(main([self.name, *ctx.args], make_parser("edgecompile", kind=Parser)))


def make_command(name: str) -> click.Command:
    """The command of that name."""
    from edgecompile.runtime.__main__ import make_parser

    group = next(
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    parser: argparse.ArgumentParser = group.choices[name]
    options = [a for a in parser._actions if a.option_strings and a.dest != "help"]
    return _Command(
        name,
        params=[click.Argument(["bundle"], metavar="BUNDLE"), *map(make_option, options)],
        help=f"{parser.description}\n\nThe same as 'python3 BUNDLE {name}' on a device.",
        short_help=parser.description,
        epilog=f"\b\nExample:\n  {_EXAMPLES[name]}\n",
    )


def make_option(action: argparse.Action) -> click.Option:
    """The same option for click."""
    choices, text = action.choices, action.help or ""
    return click.Option(
        list(action.option_strings),
        help=f"{text[:1].upper()}{text[1:]}." if text else None,
        metavar=action.metavar if isinstance(action.metavar, str) else None,
        is_flag=action.nargs == 0,
        required=action.required,
        type=click.Choice([str(item) for item in choices]) if choices is not None else None,
    )
