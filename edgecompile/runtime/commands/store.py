"""The commands of a store of versions, from ``install`` to ``gc``, and ``cohort``."""

import argparse
from typing import Any, Callable, Dict, List

from ..store.state import STORE_FOLDER, TRIAL_STARTS

#: Name, and text for people.
_COMMANDS = (
    ("install", "Verify a bundle (folder, tar or oci:DIR), test it, and put it on trial."),
    ("start", "Count a start of the service, and print the bundle to serve."),
    ("confirm", "End the trial of a version that was found good."),
    ("rollback", "Return to the previous version, and refuse the current one."),
    ("status", "Show the versions of a model."),
    ("gc", "Remove versions that are neither current nor previous, nor open."),
)


def add_store_commands(
    commands: Any, say: Callable[[str], None], show: Callable[..., None]
) -> None:
    """Adds the commands to a parser's.

    Args:
        commands: the result of ``add_subparsers``.
        say: a function that gets a line of text for every step.
        show: a function that gets the options, a report and its lines.
    """

    def run(options: argparse.Namespace) -> int:
        report = _run(options, say)
        show(options, report, format_store(options.name, report))
        return 0

    for name, text in _COMMANDS:
        sub = commands.add_parser(name, description=text, help=text)
        sub.set_defaults(command=run, name=name)
        metavar = "BUNDLE" if name == "install" else "MODEL"
        sub.add_argument("bundle", metavar=metavar)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        sub.add_argument(
            "--store",
            metavar="DIR",
            default=STORE_FOLDER,
            help="keep versions there (default: {})".format(STORE_FOLDER),
        )
        if name == "install":
            sub.add_argument("--trust", metavar="DIR", help="take the keys of this trust folder")
            sub.add_argument("--user", metavar="NAME", help="test it as the user of the service")
            sub.add_argument(
                "--percent", metavar="P", type=float,
                help="install it only if this device belongs to the first P percent, else end with 0",
            )  # fmt: skip
            _add_device(sub)
            sub.add_argument(
                "--seconds", metavar="S", type=int, default=3600,
                help="end a test after S seconds (default: 3600)",
            )  # fmt: skip
    _add_cohort(commands, show)


def _add_device(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--device",
        metavar="ID",
        help="take this id of the device (default: that in /etc/machine-id)",
    )


def _add_cohort(commands: Any, show: Callable[..., None]) -> None:
    def run(options: argparse.Namespace) -> int:
        from ..store.cohort import cohort, find_device_id

        device = find_device_id(options.device)
        number = cohort(device, options.bundle, options.release)
        report = {"device": device, "model": options.bundle, "release": options.release}
        show(options, {**report, "cohort": number}, [str(number)])
        return 0

    text = "Print the cohort of a device, from 0 to 9999, for a release of a model."
    sub = commands.add_parser("cohort", description=text, help=text)
    sub.set_defaults(command=run)
    sub.add_argument("bundle", metavar="MODEL")
    sub.add_argument(
        "--release", metavar="N", type=int, required=True, help="number of the release"
    )
    _add_device(sub)
    sub.add_argument("--json", action="store_true", help="print one JSON object")
    sub.add_argument("--debug", action="store_true", help="show tracebacks")


def _run(options: argparse.Namespace, say: Callable[[str], None]) -> Dict[str, Any]:
    if options.name == "install":
        from ..base.errors import InputError
        from ..store.cohort import make_share
        from ..store.install import install
        from ..store.proof import Prover

        if options.seconds < 1:
            raise InputError("--seconds is {}, must be at least 1".format(options.seconds))
        prover = Prover(options.user, options.seconds, options.trust)
        share = None if options.percent is None else make_share(options.percent, options.device)
        return install(options.bundle, options.store, prover, say, share)
    from ..store.store import Store, confirm, rollback, start

    store = Store(options.store, options.bundle)
    if options.name == "gc":
        from ..store.removal import collect

        return collect(store, say)
    steps: Dict[str, Callable[[Store], Dict[str, Any]]] = {
        "start": start, "confirm": confirm, "rollback": rollback, "status": Store.describe,
    }  # fmt: skip
    return steps[options.name](store)


def format_store(name: str, report: Dict[str, Any]) -> List[str]:
    """The report for people, a line each; of ``start`` the path alone, for scripts."""
    if name == "start":
        return [str(report["path"])]
    if report.get("installed") is False:
        text = "{} isn't installed: the cohort {} of this device comes later"
        return [text.format(report["version"], report["cohort"])]
    lines = ["{} in {}".format(report["model"], report["store"])]
    for key, version in sorted(report["versions"].items(), key=lambda item: item[1]["created"]):
        notes = [note for note in ("current", "previous") if report[note] == key]
        if "current" in notes and report["starts_left"] is not None:
            notes.append(
                "on trial, {} of {} starts left".format(report["starts_left"], TRIAL_STARTS)
            )
        notes += ["refused"] if key in report["refused"] else []
        number = "" if version["release"] < 0 else "release {}".format(version["release"])
        lines.append("  ".join(filter(None, ["", key, number, ", ".join(notes)])))
    lines.append("floor {}, {} versions refused".format(report["floor"], len(report["refused"])))
    if "removed" in report:
        lines.append(
            "removed: {}; open: {}".format(
                *(", ".join(report[what]) or "none" for what in ("removed", "open"))
            )
        )
    return lines
