"""The comparison of a TensorRT engine with programs of Triton kernels in the same bundle.

``finish`` measures both and writes the times into the engine's stamp.
"""

from typing import Any, Dict, Mapping, Optional, Sequence

from ..format.manifest.schema import TRITON, Manifest, Variant
from ..gpu.cache import FinishedEngine


def find_triton_variant(variants: Sequence[Variant], variant: Variant) -> Optional[Variant]:
    """The highest-ranking one of ``variants`` with Triton kernels for the same machines, or None."""
    rivals = [x for x in variants if x.backend == TRITON and x.arch == variant.arch]
    return max(rivals, key=lambda item: item.rank, default=None)


def describe_triton_variant(manifest: Manifest, rival: Variant) -> Dict[str, Any]:
    """The key of a comparison with ``rival``, the Triton variant: its name and its programs' hashes."""
    return {"name": rival.name, "programs": [manifest.files[x].sha256 for x in rival.programs]}


def read_comparison(
    manifest: Manifest, rival: Variant, engine: FinishedEngine
) -> Optional[Dict[str, float]]:
    """Mean milliseconds of a run by variant, measured by ``finish``; None: not measured yet.

    A variant that doesn't reproduce the golden vectors is left out.
    """
    entry = engine.stamp.get("compared")
    if not isinstance(entry, dict) or entry.get("rival") != describe_triton_variant(
        manifest, rival
    ):
        return None
    times = entry.get("ms")
    if not isinstance(times, dict) or not all(isinstance(x, float) for x in times.values()):
        return None
    return dict(times)


def explain_slower(variant: Variant, rival: Variant, times: Mapping[str, float]) -> str:
    """The reason to prefer ``rival`` to an engine; "" if it isn't faster, or a time is missing."""
    own, other = times.get(variant.name), times.get(rival.name)
    if own is None or other is None or own <= other:
        return ""
    text = "is slower here: a run takes {:.3f} ms, of {} {:.3f}, as finish measured"
    return text.format(own, rival.name, other)
