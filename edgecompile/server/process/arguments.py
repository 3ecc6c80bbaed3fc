"""The options of a server, as its command line and its worker share them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from edgecompile.runtime.base.errors import InputError
from edgecompile.server.settings import Limits, Settings

#: What a second worker, that waits for the first one's death, has done: nothing (there is none), loaded
#: Python and its packages, or opened and proven the bundles.
SPARE = ("none", "process", "models")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s,*]+")
_MAX_KEYS_BYTES = 1 << 20
_LIMITS = {
    "body_bytes": ("BYTES", "take bodies of at most BYTES"),
    "pending_bytes": (
        "BYTES",
        "keep at most BYTES of bodies of all requests together; more get 429",
    ),
    "elements": ("N", "take at most N elements in all tensors of a request"),
    "texts": ("N", "take at most N texts in a request"),
    "characters": ("N", "take at most N characters in all texts of a request"),
    "queue": (
        "N",
        "let at most N requests wait for a model, and 16 times --max-texts texts; further ones get 429",
    ),
    "connections": ("N", "keep at most N connections open"),
    "generations": ("N", "generate at most N texts at a time"),
    "conversations": (
        "N",
        "keep the caches of up to N texts of a model for their next turns",
    ),
    "header_s": ("SECONDS", "allow SECONDS for all headers to arrive"),
    "body_s": ("SECONDS", "allow SECONDS for a whole body to arrive"),
    "idle_s": ("SECONDS", "close a connection that is idle for SECONDS"),
    "write_s": ("SECONDS", "close a connection whose client reads nothing for SECONDS"),
}


@dataclass(frozen=True)
class Arguments:
    """The arguments of a server.

    Attributes:
        bundles: (name or None for the bundle's own, path) of each.
        host, port: the address to listen on; port 0: any free one.
        grpc_port: the port for gRPC besides HTTP; None: no gRPC.
        settings: the settings of the workers.
        watch_s: seconds between two looks whether a bundle was replaced; 0: never.
        spare: one of ``SPARE``.
    """

    bundles: tuple[tuple[str | None, str], ...]
    host: str
    port: int
    grpc_port: int | None
    settings: Settings
    watch_s: float
    spare: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options, and the bundles."""

    def add(*names: str, **how: Any) -> None:
        action = parser.add_argument(*names, **how)
        if action.default not in (None, []) and action.nargs != 0:
            action.help = f"{action.help} (default: {action.default})"

    add(
        "bundles",
        metavar="BUNDLE",
        nargs="+",
        help="a bundle's folder, or NAME=FOLDER; NAME may hold /",
    )
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="listen on ADDRESS (0.0.0.0: all)")
    add("--port", type=int, default=8000, metavar="N", help="listen on port N (0: any free one)")
    add("--grpc-port", type=int, metavar="N", help="listen for gRPC as well, on port N")
    add(
        "--threads",
        type=int,
        metavar="N",
        help="use N threads for a run instead of one for each CPU",
    )
    add("--api-keys", metavar="FILE", help="require a bearer key, one of the lines of FILE")
    add(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="allow requests from pages of ORIGIN in a browser, such as https://example.com (*: all pages); "
        "may be repeated",
    )
    add(
        "--slo",
        type=float,
        metavar="MS",
        help="refuse what can't be answered within MS milliseconds",
    )
    add(
        "--costs",
        action="append",
        default=[],
        metavar="FILE",
        help="compose batches by the costs that bench --serving FILE measured on this machine; not for a "
        "language model, whose runs the server measures itself",
    )
    add(
        "--stats",
        metavar="FILE",
        help="count requests in FILE for edgecompile plan --from-stats ({model}: the model's name, "
        "{pid}: the worker's number)",
    )
    add(
        "--lookup",
        action="store_true",
        help="guess tokens from the text so far, and check several in one run where that is faster; no token "
        "changes. For bundles built with --lookup",
    )
    add(
        "--token-ids",
        action="store_true",
        help="accept ids of the model's own vocabulary in place of texts",
    )
    add(
        "--watch",
        type=float,
        default=0,
        metavar="SECONDS",
        help="check every SECONDS (0: never) whether a bundle was replaced, and serve the new one; "
        "SIGHUP does so at once",
    )
    add(
        "--spare",
        choices=SPARE,
        default="process",
        help="keep a second worker that takes over when one dies: only its process, or with models open",
    )
    add(
        "--stuck-after",
        type=float,
        default=60,
        metavar="SECONDS",
        help="restart a worker whose run takes over SECONDS",
    )
    add(
        "--drain-delay",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="keep listening for SECONDS after SIGTERM",
    )
    add(
        "--drain-timeout",
        type=float,
        default=30,
        metavar="SECONDS",
        help="allow requests that have begun SECONDS to end, after --drain-delay",
    )
    defaults = Limits()
    for name, (metavar, text) in _LIMITS.items():
        value = getattr(defaults, name)
        add(_flag(name), dest=name, type=type(value), default=value, metavar=metavar, help=text)


def _flag(name: str) -> str:
    """The option of a setting."""
    if name in _LIMITS:
        whole = isinstance(getattr(Limits, name), int)
        name = f"max-{name}" if whole else f"{name[:-2]}-timeout"
    return "--" + name.replace("_", "-")


def read_arguments(options: argparse.Namespace) -> Arguments:
    """Turns parsed options into arguments.

    Raises:
        InputError: lists what is wrong with them.
    """
    problems: list[str] = []
    values: dict[str, Any] = {name: getattr(options, name) for name in _LIMITS}
    for name in (*_LIMITS, "drain_delay", "drain_timeout", "stuck_after", "watch"):
        value = getattr(options, name)
        zero = name in ("conversations", "drain_delay", "drain_timeout", "watch")
        if not (0 if zero else 1e-3) <= value < float("inf"):
            problems.append(
                f"{_flag(name)} is {value}, must be {'from 0 on' if zero else 'over 0'}"
            )
    if options.pending_bytes < options.body_bytes:
        problems.append(
            f"--max-pending-bytes is {options.pending_bytes}, less than the {options.body_bytes} of "
            "--max-body-bytes"
        )
    if not options.host:
        problems.append("--host is empty; 0.0.0.0 listens on all addresses")
    if not 0 <= options.port < 65536:
        problems.append(f"--port is {options.port}, must be in 0..65535")
    if options.grpc_port is not None:
        if not 0 < options.grpc_port < 65536:
            problems.append(f"--grpc-port is {options.grpc_port}, must be in 1..65535")
        if any(map(_is_missing, ("grpc", "google.protobuf"))):
            problems.append(
                "--grpc-port needs the Python packages grpcio and protobuf: pip install "
                "'edgecompile-server[grpc]', or 'edgecompile[grpc]' on a build host"
            )
    if options.threads is not None and options.threads < 1:
        problems.append(f"--threads is {options.threads}, must be from 1 on")
    if options.slo is not None and not 0 < options.slo < 1e9:
        problems.append(f"--slo is {options.slo}, must be milliseconds over 0")
    if options.costs:
        # Here, as it loads numpy, which the help can do without.
        from edgecompile.server.schedule.costs import read_document

        for path in options.costs:
            try:
                read_document(path)
            except (OSError, ValueError) as error:
                problems.append(f"--costs {path}: {error}")
    for origin in options.cors_origin:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            problems.append(
                f"--cors-origin is {origin}, must be * or SCHEME://HOST[:PORT] without a path"
            )
    keys = () if options.api_keys is None else _read_keys(options.api_keys, problems)
    bundles = [_split(item) for item in options.bundles]
    for called, path in bundles:
        if not os.path.isdir(path):
            problems.append(f"{path} isn't a bundle's folder")
        if called is not None and not (called.isprintable() and all(called.split("/"))):
            problems.append(f"{called!r} can't be a model's name")
    if problems:
        raise InputError("\n  ".join(["the server can't be started:", *problems]))
    settings = Settings(
        limits=Limits(**values),
        keys=keys,
        slo_s=None if options.slo is None else options.slo / 1e3,
        stuck_s=options.stuck_after,
        drain_delay_s=options.drain_delay,
        drain_s=options.drain_timeout,
        threads=options.threads,
        costs=tuple(options.costs),
        stats=options.stats,
        lookup=options.lookup,
        token_ids=options.token_ids,
        cors_origins=tuple(options.cors_origin),
    )
    return Arguments(
        tuple(bundles),
        options.host,
        options.port,
        options.grpc_port,
        settings,
        options.watch,
        options.spare,
    )


def _split(item: str) -> tuple[str | None, str]:
    """The name and the path of NAME=FOLDER; a path may hold the sign, too."""
    name, sign, path = item.partition("=")
    if not sign or not name or name[0] in "./~" or os.path.isdir(item):
        return None, item
    return name, path


def _read_keys(path: str, problems: list[str]) -> tuple[bytes, ...]:
    try:
        with open(path, "rb") as file:
            lines = file.read(_MAX_KEYS_BYTES).split(b"\n")
    except OSError as error:
        problems.append(f"--api-keys {path}: {error.strerror}")
        return ()
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith(b"#"))
    if not keys:
        problems.append(f"--api-keys {path} holds no key")
    if any(len(key) < 8 for key in keys):
        problems.append(f"--api-keys {path}: a key must have at least 8 characters")
    return keys


def parse(arguments: Sequence[str]) -> Arguments:
    """The arguments of a worker, which the supervisor has read before."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return read_arguments(parser.parse_args(arguments))


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # of the package that it would be in
        return True
