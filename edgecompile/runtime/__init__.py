"""The runtime that ships with every bundle: the standard library, numpy and these files.

    from edgecompile.runtime import open_bundle
    with open_bundle("minilm.ecb") as model:
        outputs = model.run({"input_ids": ids, "attention_mask": mask})

The names below are imported when they are first used, so that reading a manifest or catching an
error doesn't cost the import of numpy.
"""

from typing import TYPE_CHECKING, Any, List

from .base.errors import (
    BundleError,
    ConstraintError,
    ContextLengthError,
    CopyError,
    CryptoMissingError,
    DamagedBundleError,
    DeviceDiskError,
    DeviceMemoryError,
    EdgecompileError,
    EngineCacheError,
    ExpiredReleaseError,
    FilePermissionError,
    FinishError,
    FormatVersionError,
    GenerationError,
    GpuError,
    GpuUnavailableError,
    HostLimitError,
    InputError,
    LoaderNeededError,
    MemoryLimitError,
    MixedWheelsError,
    ModeError,
    ModelClosedError,
    NativeError,
    NoExecError,
    OpenFilesError,
    OutsideBucketsError,
    RefusedReleaseError,
    SelftestError,
    StoreError,
    TokenizerError,
    TokenizersMissingError,
    TorchUnavailableError,
    TorchVersionError,
    UnfinishedBundleError,
    UnsignedBundleError,
    UnsupportedHostError,
    UntrustedBundleError,
    WrongDeviceError,
)

if TYPE_CHECKING:
    from .model.model import Model
    from .model.open_bundle import open_bundle
    from .store.followed import follow
    from .text.encoder import open_tokenizer

__all__ = [
    "BundleError",
    "ConstraintError",
    "ContextLengthError",
    "CopyError",
    "CryptoMissingError",
    "DamagedBundleError",
    "DeviceDiskError",
    "DeviceMemoryError",
    "EdgecompileError",
    "EngineCacheError",
    "ExpiredReleaseError",
    "FilePermissionError",
    "FinishError",
    "FormatVersionError",
    "GenerationError",
    "GpuError",
    "GpuUnavailableError",
    "HostLimitError",
    "InputError",
    "LoaderNeededError",
    "MemoryLimitError",
    "MixedWheelsError",
    "ModeError",
    "Model",
    "ModelClosedError",
    "NativeError",
    "NoExecError",
    "OpenFilesError",
    "OutsideBucketsError",
    "RefusedReleaseError",
    "SelftestError",
    "StoreError",
    "TokenizerError",
    "TokenizersMissingError",
    "TorchUnavailableError",
    "TorchVersionError",
    "UnfinishedBundleError",
    "UnsignedBundleError",
    "UnsupportedHostError",
    "UntrustedBundleError",
    "WrongDeviceError",
    "follow",
    "open_bundle",
    "open_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name == "open_bundle":
        from .model.open_bundle import open_bundle

        return open_bundle
    if name == "follow":
        from .store.followed import follow

        return follow
    if name == "Model":
        from .model.model import Model

        return Model
    if name == "open_tokenizer":
        from .text.encoder import open_tokenizer

        return open_tokenizer
    raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))


def __dir__() -> List[str]:
    return sorted(__all__)
