"""The loader that is registered: whether torch here fits a variant, and its programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgecompile.runtime.base.errors import (
    TorchUnavailableError,
    TorchVersionError,
    UnsupportedHostError,
)
from edgecompile.runtime.format.document import shorten

if TYPE_CHECKING:
    from edgecompile.runtime.cpu.programs import Programs
    from edgecompile.runtime.format.files.folder import BundleFolder
    from edgecompile.runtime.format.manifest.schema import Variant

COMMAND = "edgecompile.torch_runtime"


def public_version(version: str) -> str:
    """A version without what tells builds of it apart: 2.13.0 of 2.13.0+cpu.

    Builds for CPUs and for each CUDA have one C interface.
    """
    return version.partition("+")[0]


class TorchLoader:
    """Runs variants of the backend ``torch``."""

    command = COMMAND

    def refuse(self, variant: Variant) -> UnsupportedHostError | None:
        """The reason that torch here can't run ``variant``: it is absent, broken, or of another version."""
        try:
            import torch
        except Exception as error:  # a broken installation fails in many ways
            return TorchUnavailableError(
                f"needs torch {variant.torch}, which can't be imported: {shorten(error, 300)}",
                f"install torch=={variant.torch}, in the environment of this Python",
            )
        if public_version(str(torch.__version__)) != variant.torch:
            return TorchVersionError(
                f"needs torch {variant.torch}, this is {torch.__version__}",
                f"install torch=={variant.torch}, or build the bundle with the torch that is "
                "installed here: compiled code is for one version",
            )
        return None

    def open(
        self,
        folder: BundleFolder,
        variant: Variant,
        threads: int | None,
        concurrency: int,
        check_weights: bool,
    ) -> Programs:
        """Maps the weights; loads no program.

        Raises:
            DamagedBundleError: the weights differ from their hash.
            BundleError: they break a rule.
        """
        from edgecompile.runtime.format.files.weights import map_weights

        from .programs import TorchLibrary, TorchPrograms

        library: Any = TorchLibrary()
        if threads is not None:
            library.threads = threads
        manifest = folder.manifest
        weights = map_weights(folder, manifest.weights[manifest.precision], check_weights)
        return TorchPrograms(folder, variant, library, weights, concurrency)
