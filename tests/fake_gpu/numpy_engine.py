"""An engine for tests that computes with numpy on the fake of libcudart: no GPU, no TensorRT.

It keeps the promises of ``edgecompile.runtime.gpu.engines`` and checks those of its caller: shapes
within the profile, addresses that the GPU reaches, scratch memory that is nobody else's meanwhile.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgecompile.runtime.base.errors import GpuError
from edgecompile.runtime.format.manifest.schema import Manifest
from tests.fake_gpu.build import FakeCudart

Arrays = dict[str, Any]
Sizes = tuple[int, ...]
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_ILLEGAL_ADDRESS = 700


def embed(inputs: Arrays) -> Arrays:
    """The model of tests/runtime/bundles.py's document; what the mask hides changes nothing."""
    ids = (inputs["input_ids"] * inputs["attention_mask"]).astype(np.float32)
    mask = inputs["attention_mask"].astype(np.float32)
    embedding = [ids.sum(1), mask.sum(1), ids.max(1), np.ones(len(ids), np.float32)]
    return {
        "embedding": np.stack(embedding, 1).astype(np.float32),
        "states": np.stack([ids, mask], 2),
    }


class NumpyEngine:
    """One profile per bucket of a manifest; ``pause`` is how long a run takes, in seconds."""

    label = "numpy engine"

    def __init__(
        self,
        fake: FakeCudart,
        manifest: Manifest,
        compute: Callable[[Arrays], Arrays] = embed,
        pause: float = 0.0,
    ) -> None:
        self.fake = fake
        self.manifest = manifest
        self.compute = compute
        self.pause = pause
        self.enqueue_pause = 0.0
        self.profiles = len(manifest.buckets)
        self.opened: list[NumpyContext] = []
        self.closed = self.abandoned = False
        self.runs = 0
        self.faults: list[BaseException] = []
        self.calls: list[Any] = []  # what C may still call

    def scratch_bytes(self, profile: int) -> int:
        """Larger for later buckets."""
        return 1000 * (profile + 1)

    def open(self, profile: int, scratch: int, size: int, stream: int) -> NumpyContext:
        """See ``edgecompile.runtime.gpu.engines``."""
        assert size >= self.scratch_bytes(profile) and scratch % 256 == 0 and stream
        context = NumpyContext(self, profile, scratch)
        self.opened.append(context)
        return context

    def close(self) -> None:
        """See ``edgecompile.runtime.gpu.engines``."""
        assert all(context.closed for context in self.opened)
        self.closed = True

    def abandon(self) -> None:
        """See ``edgecompile.runtime.gpu.engines``."""
        self.abandoned = True


class NumpyContext:
    """A bucket's."""

    dtypes: Mapping[str, str] = {}

    def __init__(self, engine: NumpyEngine, profile: int, scratch: int) -> None:
        self.engine = engine
        self.bucket = engine.manifest.buckets[profile]
        self.scratch = scratch
        self.shapes: dict[str, Sizes] = {}
        self.addresses: dict[str, int] = {}
        self.reshapes = 0
        self.closed = False

    def reshape(self, shapes: Mapping[str, Sizes]) -> dict[str, Sizes]:
        """Output shapes by the manifest's axes."""
        sizes: dict[str, int] = {}
        for spec in self.engine.manifest.inputs:
            for dim, size in zip(spec.shape, shapes[spec.name], strict=True):
                if isinstance(dim, str):
                    if size not in self.bucket.axes[dim]:
                        raise GpuError(f"{spec.name}: {dim} {size} is outside of the profile")
                    assert sizes.setdefault(dim, size) == size
        outputs = {
            spec.name: tuple(
                sizes[dim] if isinstance(dim, str) else int(dim or -1) for dim in spec.shape
            )
            for spec in self.engine.manifest.outputs
        }
        self.shapes = {**shapes, **outputs}
        self.reshapes += 1
        return outputs

    def bind(self, addresses: Mapping[str, int]) -> None:
        """Every address is the GPU's."""
        for name, address in addresses.items():
            assert address % 256 == 0, name
        self.addresses = dict(addresses)

    def _array(self, name: str, dtype: str) -> Any:
        shape, address = self.shapes[name], self.addresses[name]
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not self.engine.fake.library.fake_cudart_reaches(
            ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
        ):
            raise MemoryError(name)
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)

    def enqueue(self, stream: int) -> None:
        """Puts a call into the stream that computes when the fake gets there."""
        assert not self.closed
        time.sleep(self.engine.enqueue_pause)
        shapes, engine = dict(self.shapes), self.engine

        def work(_: Any) -> None:
            try:
                assert shapes == self.shapes, "reshaped while a run was under way"
                mark = (ctypes.c_uint64).from_address(self.scratch)
                mark.value = id(self)
                manifest = engine.manifest
                inputs = {x.name: self._array(x.name, x.dtype).copy() for x in manifest.inputs}
                outputs = engine.compute(inputs)
                time.sleep(engine.pause)
                for spec in manifest.outputs:
                    self._array(spec.name, spec.dtype)[...] = outputs[spec.name]
                assert mark.value == id(self), "two runs share the scratch memory at once"
                engine.runs += 1
            except BaseException as error:
                engine.faults.append(error)
                engine.fake.library.fake_cudart_fault(_ILLEGAL_ADDRESS)

        call = _CALL(work)
        engine.calls.append(call)
        number = engine.fake.library.fake_cudart_host_call(ctypes.c_void_p(stream), call, None)
        if number:
            raise GpuError(f"the launch failed with {number}")

    def close(self) -> None:
        """Twice is once."""
        self.closed = True
