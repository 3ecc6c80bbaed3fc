"""The parts of a bundle that a backend adds to the programs for CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from edgecompile.audit.judge import AuditVerdict
from edgecompile.bundle.verdict import VerifyReport
from edgecompile.bundle.writer import BundleWriter
from edgecompile.runtime.format.manifest.schema import Manifest


class Parts(Protocol):
    """Files and variants of one backend, ready to be packed."""

    @property
    def audit(self) -> tuple[AuditVerdict, ...]:
        """Verdicts on the libraries."""
        ...

    @property
    def precision(self) -> str:
        """The precision that the programs compute in."""
        ...

    def add(self, writer: BundleWriter, manifest: Manifest) -> Manifest:
        """Copies the files in; returns the manifest with the variants.

        Raises:
            EdgecompileError: a subclass for each reason that they can't be packed.
        """
        ...

    def check(
        self, bundle: Path, manifest: Manifest, report: VerifyReport, tell: Callable[[str], None]
    ) -> tuple[Manifest, VerifyReport]:
        """Runs as much of the staged variants as this machine can.

        Args:
            bundle: the staged bundle.
            manifest: its manifest.
            report: the results so far.
            tell: a function that gets what is being done.

        Returns:
            The manifest with the names of the checks that passed, and the report with their results.

        Raises:
            VerificationError, SelftestError: a result is wrong.
        """
        ...

    def documents(self) -> Mapping[str, object]:
        """The reports in the bundle, by file name, as plain JSON values."""
        ...
