"""What an audit finds: findings about a library, its verdict, and what stops a build."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from edgecompile.audit.instructions import InstructionEvidence
from edgecompile.errors import AuditError

__all__ = ["AuditVerdict", "Finding", "require"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing to say about a library.

    Attributes:
        severity: an ``error`` stops the build; a ``note`` says what could not be checked.
        rule: a fixed word by which programs tell findings apart.
        what: the fact, with names and numbers.
        cure: what to do about it, or "".
    """

    severity: Severity
    rule: str
    what: str
    cure: str = ""


@dataclass(frozen=True)
class AuditVerdict:
    """All findings about one library, and the facts that they rest on.

    Attributes:
        library: the file's name.
        variant: name of the variant that it was judged for; the architecture for a CPU probe.
        target: name of the system.
        findings: errors first.
        machine: what it is built for.
        glibc: highest glibc version needed, or None where none is.
        glibcxx: likewise of libstdc++; anything but None is an error.
        needed: DT_NEEDED entries.
        vectorised: whether packed arithmetic was looked for.
        instructions: what the disassembly showed, or None if it wasn't made.
    """

    library: str
    variant: str
    target: str
    findings: tuple[Finding, ...]
    machine: str
    glibc: str | None
    glibcxx: str | None
    needed: tuple[str, ...]
    vectorised: bool
    instructions: InstructionEvidence | None = None

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return {
            "library": self.library,
            "variant": self.variant,
            "target": self.target,
            "ok": self.ok,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "machine": self.machine,
            "glibc": self.glibc,
            "glibcxx": self.glibcxx,
            "needed": list(self.needed),
            "vectorised": self.vectorised,
            "instructions": self.instructions.to_json() if self.instructions else None,
        }


def require(verdicts: Iterable[AuditVerdict]) -> None:
    """Passes if every verdict is without errors.

    Raises:
        AuditError: names every error of every library, each with its cure.
    """
    lines = []
    failed = 0
    for verdict in verdicts:
        if verdict.ok:
            continue
        failed += 1
        lines.append(f"{verdict.library} ({verdict.variant}):")
        for finding in verdict.findings:
            if finding.severity == "error":
                cure = f" — {finding.cure}" if finding.cure else ""
                lines.append(f"  {finding.rule}: {finding.what}{cure}")
    if failed:
        noun = "library isn't" if failed == 1 else "libraries aren't"
        raise AuditError(
            "\n".join([f"{failed} {noun} fit for the target:", *lines]),
            hint="nothing was packed; the compile commands stand in the work folder",
        )
