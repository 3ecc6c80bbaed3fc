"""Proves a version before it is served: golden vectors, in a process of its own, whose end is no end of the installer."""

import json
import os
import pwd
import signal
import subprocess
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Type

from ..base.children import child_command
from ..base.errors import (
    BundleError,
    EdgecompileError,
    InputError,
    SelftestError,
    UnfinishedBundleError,
)
from ..format.document import shorten
from ..format.trust.policy import TRUST_VARIABLE, trust_environment

PROOF_SECONDS = 3600


class Prover(NamedTuple):
    """The conditions of a proof.

    Attributes:
        user: name of the user that the service runs as; None: this one.
        seconds: time after which a test counts as failed.
        trust: the trust folder; None: as in this process.
    """

    user: Optional[str] = None
    seconds: int = PROOF_SECONDS
    trust: Optional[str] = None

    def prove(self, path: str, sha256: str) -> None:
        """Runs the golden vectors of a bundle; the engine that its variant needs is built before.

        Args:
            path: the bundle, whose hashes the caller compared.
            sha256: the SHA-256 that its manifest must have.

        Raises:
            SelftestError: they weren't reproduced, or the process crashed or took too long.
            EdgecompileError: the error that the process ended with.
        """
        try:
            self._selftest(path, sha256)
        except UnfinishedBundleError:
            # The version before goes on serving meanwhile.
            self._run("finish", path)
            self._selftest(path, sha256)

    def _selftest(self, path: str, sha256: str) -> None:
        # "fast": the installer hashed the weights a moment ago. What is loaded is hashed in any case.
        report = self._run("selftest", path, "--verify", "fast")
        if report.get("manifest_sha256") != sha256:
            raise BundleError("{}: was exchanged meanwhile".format(path))

    def _run(self, command: str, *arguments: str) -> Dict[str, Any]:
        start, where = child_command("edgecompile.runtime")
        environment = dict(where.pop("env", os.environ))
        environment.update(trust_environment())  # the child's folder is another one
        if self.trust is not None:
            environment[TRUST_VARIABLE] = os.path.abspath(self.trust)
        become = _find_user(self.user, environment)

        try:
            done = subprocess.run(
                [*start, command, *arguments, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                # Of a self-test all is in the answer; an engine's build says how far it is.
                stderr=None if command == "finish" else subprocess.DEVNULL,
                env=environment,
                preexec_fn=become,
                timeout=self.seconds,
                **where,
            )
        except subprocess.TimeoutExpired:
            text = "{} took more than {} seconds [store-proof]"
            raise SelftestError(text.format(command, self.seconds)) from None
        except (OSError, subprocess.SubprocessError) as error:
            text = "{} can't be run as the user {}: {}"
            raise InputError(text.format(command, self.user or os.geteuid(), error)) from None
        return _read_answer(command, done.returncode, done.stdout)


def _read_answer(command: str, code: int, answer: bytes) -> Dict[str, Any]:
    if code < 0:
        text = "{} was ended by {} [store-proof]"
        raise SelftestError(text.format(command, signal.Signals(-code).name))
    try:
        report = json.loads(answer)
        error = report.get("error")
    except (ValueError, AttributeError):
        report, error = {}, None
    if code and isinstance(error, dict):
        kind = next((item for item in _errors() if item.__name__ == error["class"]), None)
        if kind is not None:
            raise kind(shorten(error["message"], 4000), error["hint"])
    if code or not report.get("ok"):
        failed = [item for item in report.get("cases", []) if not item.get("ok")]
        text = "{}: exit code {}, {} golden vectors differ [store-proof]"
        raise SelftestError(text.format(command, code, len(failed)))
    return dict(report)


def _errors(base: Type[EdgecompileError] = EdgecompileError) -> Iterator[Type[EdgecompileError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _errors(kind)


def _find_user(name: Optional[str], environment: Dict[str, str]) -> Callable[[], None]:
    """The function with which a child becomes a user."""
    if name is None:
        return lambda: None
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise InputError("user {!r}: there is none".format(name)) from None
    environment.update(HOME=user.pw_dir, USER=name, LOGNAME=name)

    def become() -> None:
        os.initgroups(name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    return become
