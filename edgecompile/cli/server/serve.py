"""``edgecompile serve``: the server of ``python -m edgecompile.server``, on the build host."""

from __future__ import annotations

from typing import Any

import click

from edgecompile.cli.device import HandedOver, Parser, make_option
from edgecompile.cli.options.groups import GroupedOptions
from edgecompile.server.__main__ import main, make_parser

_HELP = """Serve bundles over HTTP until SIGTERM.

Speaks the Open Inference Protocol, OpenAI's embeddings, completions and chats, and the routes of
text-embeddings-inference, Cohere, Jina and KServe; /openapi.json describes them. One process owns
the address, another one runs the models and is replaced if it dies.

The same as 'python -m edgecompile.server' where the wheel edgecompile-server is installed.
"""


class _Serve(GroupedOptions, HandedOver):
    """Hands over to the server's own reader of options."""

    def invoke(self, ctx: click.Context) -> Any:
        ctx.exit(main(ctx.args, make_parser("edgecompile serve", kind=Parser)))


_OPTIONS = [
    action
    for action in make_parser()._actions
    if action.option_strings and action.dest not in ("help", "version")
]
command = _Serve(
    "serve",
    params=[
        click.Argument(["bundles"], metavar="BUNDLE...", nargs=-1),
        *map(make_option, _OPTIONS),
    ],
    help=_HELP,
    epilog="\b\nExample:\n  edgecompile serve minilm.ecb --port 8000\n",
)
