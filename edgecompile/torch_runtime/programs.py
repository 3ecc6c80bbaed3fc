"""torch as the runtime library of a variant, and the programs that it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from edgecompile.runtime.cpu.libraries import load_library
from edgecompile.runtime.cpu.programs import Programs

from .program import TorchProgram

if TYPE_CHECKING:
    from edgecompile.runtime.cpu.libraries import PinnedLibrary
    from edgecompile.runtime.format.weights import Weights


class TorchLibrary:
    """Stands where a bundle's own runtime library stands otherwise (``runtime.aoti``).

    Its threads are torch's: the number holds for all of torch in this process.
    """

    label = f"torch {torch.__version__}"
    can_profile = False
    runs_into = True

    @property
    def threads(self) -> int:
        """Number of threads that one run may use."""
        return torch.get_num_threads()

    @threads.setter
    def threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def trim(self) -> None:
        """torch gives freed memory of a CPU back by itself."""

    def open_program(
        self, pinned: PinnedLibrary, weights: Weights, concurrency: int
    ) -> TorchProgram:
        """Loads a program and gives it the constants of ``weights``.

        Args:
            pinned: the program's library.
            weights: kept mapped until the program is closed.
            concurrency: how many runs may be in flight at once; more wait their turn.

        Raises:
            DamagedBundleError: its content changed since it was pinned.
            NativeError: it can't be loaded, or constants or operators are missing (all are listed).
        """
        return TorchProgram(load_library(pinned), pinned.label, weights, concurrency)


class TorchPrograms(Programs):
    """One program per bucket; see there."""

    def describe(self) -> dict[str, Any]:
        """For ``Model.info``, plain JSON values; "torch" is the version that runs."""
        return {**super().describe(), "torch": str(torch.__version__)}
