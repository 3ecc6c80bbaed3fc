"""Backends that this runtime knows but doesn't load itself: whoever can, registers a loader.

A variant of the backend ``torch`` is run by torch, which this package never imports; the package
``edgecompile.torch_runtime`` does, and registers itself when it is imported. A bundle that needs it
carries it beside this one.
"""

from typing import TYPE_CHECKING, Dict, Optional, Protocol

from ..base.errors import LoaderNeededError, UnsupportedHostError
from ..format.manifest.schema import AOTI_CPU, TENSORRT, TORCH, TRITON, Variant

if TYPE_CHECKING:
    from ..format.files.folder import BundleFolder
    from .programs import Programs

#: What open_bundle runs without anybody's help.
OWN_BACKENDS = (AOTI_CPU, TENSORRT, TRITON)
#: The package whose import registers a loader of the backend.
PACKAGES = {TORCH: "edgecompile.torch_runtime"}
_OWN_COMMAND = "edgecompile.runtime"


class Loader(Protocol):
    """A loader: runs the variants of one backend."""

    #: What ``python -m`` is given instead of ``edgecompile.runtime``.
    command: str

    def refuse(self, variant: Variant) -> Optional[UnsupportedHostError]:
        """Why a variant that fits this CPU and system can't be run all the same, or None."""
        ...

    def open(
        self,
        folder: "BundleFolder",
        variant: Variant,
        threads: Optional[int],
        concurrency: int,
        check_weights: bool,
    ) -> "Programs":
        """As ``programs.open_cpu_variant``."""
        ...


_loaders: Dict[str, Loader] = {}


def register_loader(backend: str, loader: Loader) -> None:
    """Lets ``open_bundle`` run variants of ``backend``; a later call for the same one replaces it."""
    _loaders[backend] = loader


def find_loader(backend: str) -> Loader:
    """The registered loader of a backend, which ``refuse`` has accepted."""
    return _loaders[backend]


def is_known(backend: str) -> bool:
    """Whether this runtime or a package that it knows has a loader for a backend."""
    return backend in OWN_BACKENDS or backend in _loaders or backend in PACKAGES


def refuse(variant: Variant) -> Optional[UnsupportedHostError]:
    """Why nothing here runs the backend of a variant that fits the machine otherwise, or None.

    A LoaderNeededError where it is a matter of an import.
    """
    if variant.backend in OWN_BACKENDS:
        return None
    loader = _loaders.get(variant.backend)
    if loader is not None:
        return loader.refuse(variant)
    package = PACKAGES.get(variant.backend)
    if package is None:
        return UnsupportedHostError(
            "needs the backend {}, unknown here".format(variant.backend),
            "build the bundle for a target that includes this machine",
        )
    return LoaderNeededError(
        "needs the backend {}, whose loader isn't imported".format(variant.backend),
        "import {0} before open_bundle, or run python -m {0}: it is in the bundle's runtime/ "
        "folder and needs {1} here".format(package, variant.backend),
    )


def command() -> str:
    """The module for ``python -m`` that can do in a fresh process what this one can."""
    for loader in _loaders.values():
        return loader.command
    return _OWN_COMMAND
