"""Runs every program of a model once, so that no caller waits for the first run."""

from typing import TYPE_CHECKING, Any, Mapping, Optional, Union

from ..base.errors import UnsupportedHostError
from ..base.limits import memory_for
from ..call.dispatch import Dispatcher
from ..call.inputs import InputChecker, make_inputs
from ..format.dtypes import BY_NAME
from ..format.manifest.schema import Manifest
from ..format.sums import size_of

if TYPE_CHECKING:
    from ..cpu.programs import Programs
    from ..gpu.programs import GpuPrograms
    from ..triton.programs import TritonPrograms


def warm_up(
    manifest: Manifest,
    programs: "Union[Programs, GpuPrograms, TritonPrograms]",
    dispatcher: Dispatcher,
    memory: int,
) -> None:
    """Loads every bucket's program and runs it once at its hint.

    Where many rows take a library of their own, it runs once at its largest sizes, too, unless their inputs need too
    much memory.

    Args:
        manifest: the manifest of the model.
        programs: its programs.
        dispatcher: knows the hints.
        memory: bytes that this machine has; 0 if that isn't known.

    Raises:
        UnsupportedHostError: the inputs of a bucket need more than half of the memory.
        MemoryLimitError: a run needs more than there is.
        BundleError, NativeError: a program is damaged, can't be loaded, or fails.
    """
    checker = InputChecker(manifest)
    # On a GPU a text's programs are those that will run; others would only take memory.
    text: Any = programs.take_text() if programs.keeps_texts else None  # type: ignore[union-attr]
    there = () if text is None or manifest.generation is None else manifest.generation.caches
    try:
        for index in range(len(programs)):
            program = programs.get(index) if text is None else text.get(index)
            sizes = dispatcher.hint_sizes(index)
            lack = find_lack_of_memory(manifest, sizes, memory)
            if lack is not None:
                raise UnsupportedHostError(
                    "warming up bucket {}: {}".format(index, lack),
                    "open the bundle without warm-up, or build it for smaller sizes",
                )
            each = [sizes]
            largest = {axis: item.hi for axis, item in manifest.buckets[index].axes.items()}
            more = largest != sizes and index in programs.warms_largest
            if more and find_lack_of_memory(manifest, largest, memory) is None:
                each.append(largest)
            with memory_for("warming up bucket {}".format(index)):
                for sizes in each:
                    arrays = checker.check(make_inputs(manifest, sizes))[0]
                    pairs = zip(manifest.inputs, arrays)
                    program.run([array for spec, array in pairs if spec.name not in there])
    finally:
        if text is not None:
            programs.give_back(text)  # type: ignore[union-attr]


def find_lack_of_memory(manifest: Manifest, sizes: Mapping[str, int], memory: int) -> Optional[str]:
    """Whether inputs of these axis sizes need too much of ``memory`` bytes (0: unknown), in words.

    More than half is too much: what is made of them is seldom smaller. Asked before they are made,
    since a system may end a process that asks for more than there is.
    """
    nbytes = 0
    for spec in manifest.inputs:
        count = BY_NAME[spec.dtype].size
        for dim in spec.shape:
            count *= size_of(dim, sizes)
        nbytes += count
    if memory == 0 or nbytes <= memory // 2:
        return None
    text = "the inputs have {} bytes, more than half of this machine's memory of {} bytes"
    return text.format(nbytes, memory)
