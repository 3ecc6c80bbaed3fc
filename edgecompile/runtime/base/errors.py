"""Errors of the device side. The build side's errors (edgecompile.errors) extend this tree.

Each class owns an exit code, so that a script can tell causes apart without reading text.
A message says what, where and the numbers; ``hint`` says the cure.
"""

from typing import Optional


class EdgecompileError(Exception):
    """Base of every error that edgecompile raises on purpose.

    Args:
        message: the problem, its place, and the numbers.
        hint: the cure for the reader; printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if not self.hint else self.message + "\nhint: " + self.hint


class BundleError(EdgecompileError):
    """The bundle can't be used: it is missing, malformed or inconsistent."""

    exit_code = 20


class FormatVersionError(BundleError):
    """The bundle was written in a format that this runtime doesn't know."""

    exit_code = 21


class DamagedBundleError(BundleError):
    """A file of the bundle is missing or truncated, differs from its hash, or isn't listed."""

    exit_code = 22


class UntrustedBundleError(BundleError):
    """Too few trusted keys signed the bundle as it is, or the device's trust folder can't be used."""

    exit_code = 76


class UnsignedBundleError(UntrustedBundleError):
    """The bundle has no signature, and this device wants one."""

    exit_code = 75


class RefusedReleaseError(UntrustedBundleError):
    """The device's trust folder or store refuses this bundle, or releases as old as it."""

    exit_code = 77


class ExpiredReleaseError(UntrustedBundleError):
    """The bundle's release has expired, and this device heeds that."""

    exit_code = 78


class CryptoMissingError(UntrustedBundleError):
    """Signatures are wanted, and there is nothing here that could check them."""

    exit_code = 79


class StoreError(EdgecompileError):
    """A store of versions can't be used, or its state doesn't allow a command."""

    exit_code = 80


class UnsupportedHostError(EdgecompileError):
    """No variant of the bundle can run on this CPU or operating system."""

    exit_code = 23


class LoaderNeededError(UnsupportedHostError):
    """A variant fits this machine, but what loads its backend wasn't imported."""

    exit_code = 67


class TorchUnavailableError(UnsupportedHostError):
    """A variant is run by torch, which can't be imported here."""

    exit_code = 66


class TorchVersionError(UnsupportedHostError):
    """A variant is for another version of torch than the one that is installed here."""

    exit_code = 65


class InputError(EdgecompileError, ValueError):
    """An input of ``Model.run`` is missing, unknown, or of the wrong dtype, rank, size or value."""

    exit_code = 24


class OutsideBucketsError(InputError):
    """The input's lengths lie outside every bucket of the bundle."""

    exit_code = 25


class ContextLengthError(InputError):
    """A prompt and the new tokens asked for don't fit into the model's context."""

    exit_code = 16


class GenerationError(InputError):
    """A bundle was asked for new tokens that has no program for that, or none for this device."""

    exit_code = 15


class ConstraintError(InputError):
    """A constraint of new tokens failed, allows no token, or gave what is no mask; or a grammar can't be used."""

    exit_code = 10


class NativeError(EdgecompileError):
    """The native runtime reported a failure, or could not be loaded."""

    exit_code = 26


class SelftestError(EdgecompileError):
    """The golden vectors were not reproduced within their tolerance."""

    exit_code = 27


class ModelClosedError(EdgecompileError):
    """A method of a ``Model`` was called after ``close()``."""

    exit_code = 28


class CopyError(EdgecompileError, TypeError):
    """A ``Model``, or a part of it, was to be copied or pickled."""

    exit_code = 14


class HostLimitError(EdgecompileError):
    """The system refuses what the bundle needs; the bundle itself is sound as far as is known."""

    exit_code = 68


class OpenFilesError(HostLimitError):
    """This process, or the whole system, has as many files open as it may."""

    exit_code = 69


class FilePermissionError(HostLimitError):
    """This user may not read a file or folder of the bundle."""

    exit_code = 71


class NoExecError(HostLimitError):
    """The system doesn't let code run from where the bundle is, such as a noexec mount."""

    exit_code = 72


class MemoryLimitError(HostLimitError, MemoryError):
    """There isn't the memory or the address space, or a limit on it is too small."""

    exit_code = 73


class GpuError(NativeError):
    """A call of CUDA or of TensorRT failed.

    Args:
        message: see ``EdgecompileError``.
        hint: see ``EdgecompileError``.
        name: CUDA's own word for the error, such as cudaErrorMemoryAllocation; "" if it isn't one.
        number: CUDA's number of it; 0 if it isn't one.
        sticky: whether nothing can be done on this GPU by this process any more.
    """

    exit_code = 29

    def __init__(
        self,
        message: str,
        hint: Optional[str] = None,
        name: str = "",
        number: int = 0,
        sticky: bool = False,
    ) -> None:
        super().__init__(message, hint)
        self.name = name
        self.number = number
        self.sticky = sticky


class GpuUnavailableError(GpuError):
    """A need of a GPU variant isn't met: a driver, a GPU that fits, libcudart, the tensorrt module."""

    exit_code = 19


class UnfinishedBundleError(BundleError):
    """The variant's engine hasn't been built on this device, or not for the installed versions."""

    exit_code = 18


class ModeError(InputError):
    """The bundle can't be run in the mode that was asked for."""

    exit_code = 17


class TokenizerError(EdgecompileError):
    """Texts were given to a bundle that holds no tokenizer for them, or none that can be read."""

    exit_code = 13


class MixedWheelsError(EdgecompileError):
    """The wheels of edgecompile that are installed here have different versions."""

    exit_code = 11


class TokenizersMissingError(TokenizerError):
    """The bundle holds a tokenizer, but the Python package tokenizers isn't installed here."""

    exit_code = 12


class FinishError(EdgecompileError):
    """TensorRT didn't build or accept the engine of a bundle on this device."""

    exit_code = 60


class WrongDeviceError(FinishError):
    """The bundle's recipe is for another module, JetPack or TensorRT."""

    exit_code = 61


class DeviceMemoryError(FinishError):
    """This device hasn't the memory to build or run the engine."""

    exit_code = 62


class DeviceDiskError(FinishError):
    """The disk that an engine or a version would lie on hasn't the space for it."""

    exit_code = 63


class EngineCacheError(FinishError):
    """The folder of finished engines can't be used."""

    exit_code = 64
