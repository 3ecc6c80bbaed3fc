"""Proves a version before it is served: golden vectors, in a process of its own, whose end is no end of the installer."""

import json
import os
import pwd
import signal
import subprocess
from contextlib import contextmanager, suppress
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
        """Runs the golden vectors of a bundle that is there; see ``begin``."""
        with self.begin(path) as test:
            test(sha256)

    @contextmanager
    def begin(self, path: str) -> "Iterator[Callable[[str], None]]":
        """A block with the process of a test, which starts at once, so that it is ready once the bundle is there.

        Args:
            path: the bundle, which needn't be there yet.

        Yields:
            A function that runs the golden vectors; the engine that the variant needs is built before. It gets the
            SHA-256 that the manifest must have. The caller has compared the bundle's hashes.

        Raises:
            SelftestError: they weren't reproduced, or the process crashed or took too long.
            EdgecompileError: the error that the process ended with.
        """
        with self._start("selftest", path) as process:

            def test(sha256: str) -> None:
                try:
                    report = self._answer("selftest", process)
                except UnfinishedBundleError:
                    # The version before goes on serving meanwhile.
                    for command in ("finish", "selftest"):
                        with self._start(command, path) as anew:
                            report = self._answer(command, anew)
                if report.get("manifest_sha256") != sha256:
                    raise BundleError("{}: was exchanged meanwhile".format(path))

            yield test

    @contextmanager
    def _start(self, command: str, path: str) -> "Iterator[subprocess.Popen[bytes]]":
        """A block with the process of a command, which ends with it."""
        module, more = "edgecompile.runtime", ["--json"]
        if command == "selftest":
            # "fast": the installer hashed the weights a moment ago. What is loaded is hashed in any case.
            module, more = "edgecompile.runtime.tester", ["--verify", "fast", "--json"]
        start, where = child_command(module)
        environment = dict(where.pop("env", os.environ))
        environment.update(trust_environment())  # the child's folder is another one
        if self.trust is not None:
            environment[TRUST_VARIABLE] = os.path.abspath(self.trust)
        become = _find_user(self.user, environment)
        try:
            process = subprocess.Popen(
                [*start, command, path, *more],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Of a self-test all is in the answer; an engine's build says how far it is.
                stderr=None if command == "finish" else subprocess.DEVNULL,
                env=environment,
                preexec_fn=become,
                **where,
            )
        except (OSError, subprocess.SubprocessError) as error:
            text = "{} can't be run as the user {}: {}"
            raise InputError(text.format(command, self.user or os.geteuid(), error)) from None
        with process:
            try:
                yield process
            finally:
                process.kill()

    def _answer(self, command: str, process: "subprocess.Popen[bytes]") -> Dict[str, Any]:
        assert process.stdin is not None
        process.stdin.write(b"1")
        try:
            answer, _ = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired:
            text = "{} took more than {} seconds [store-proof]"
            raise SelftestError(text.format(command, self.seconds)) from None
        return _read_answer(command, process.returncode, answer)


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


def _offer_memory() -> None:
    """Lets the kernel end this process first where memory runs out, not the version that serves."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _find_user(name: Optional[str], environment: Dict[str, str]) -> Callable[[], None]:
    """The function with which a child becomes a user, and offers its memory."""
    if name is None:
        return _offer_memory
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise InputError("user {!r}: there is none".format(name)) from None
    environment.update(HOME=user.pw_dir, USER=name, LOGNAME=name)

    def become() -> None:
        _offer_memory()
        os.initgroups(name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    return become
