"""The ``info`` command: a bundle's contents, and the parts that fit this machine."""

import contextlib
import os
from typing import Any, Dict, List, Optional

from ..base.errors import BundleError, EdgecompileError, UnsupportedHostError
from ..cpu.host import VARIANT_VARIABLE, choose_variant, describe_host, missing
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import MANIFEST_NAME, TENSORRT, TRITON, Manifest, Variant
from ..generation.caches import text_bytes
from ..model.open_bundle import find_opener
from ..open.choose import OpenRequest

_HERE = ("host", "variants", "chosen", "problem", "device_bytes")


def describe_bundle(
    path: str, variant: Optional[str] = None, *, probe: bool = True
) -> Dict[str, Any]:
    """Opens a bundle's manifest and runs its CPU probe, but loads nothing else.

    Args:
        path: the bundle.
        variant: its name, to judge instead of the best one.
        probe: ask this machine; without it nothing is loaded at all, and "host", "variants",
            "chosen" and "device_bytes" are None.

    Returns:
        Plain JSON values: "manifest", "manifest_sha256", "host", "variants" (each with "ok",
        "reasons" why it can't run here, and "verdict": why it is or isn't loaded), "chosen" (or
        None, with "problem"), "gpu_precision" (what a variant for a GPU computes in, or None),
        "bytes" of the bundle, "cache_bytes" of the longest text on a CPU without checkpoints (0: nothing
        generates), and "device_bytes", what this machine needs of the bundle beside Python and numpy.

    Raises:
        BundleError: it is missing, malformed or damaged.
        NativeError: the probe can't be run.
    """
    folder = BundleFolder(path)
    try:
        folder.check_sizes()
        manifest = folder.manifest
        here: Dict[str, Any] = dict.fromkeys(_HERE)
        if probe:
            variant = variant or os.environ.get(VARIANT_VARIABLE) or None
            here = _judge_host(folder, variant)
        whole = manifest.to_json()
        total = sum(entry.size for entry in manifest.files.values())
        return {
            "path": path,
            "manifest_sha256": folder.manifest_sha256,
            **here,
            "gpu_precision": _gpu_precision(folder),
            "bytes": total + os.path.getsize(os.path.join(path, MANIFEST_NAME)),
            "cache_bytes": text_bytes(manifest),
            "manifest": {key: value for key, value in whole.items() if key != "files"},
        }
    finally:
        folder.close()


def _gpu_precision(folder: BundleFolder) -> Optional[str]:
    for variant in folder.manifest.variants:
        if variant.gpu is not None:
            return variant.gpu.precision
        if variant.backend == TENSORRT:
            from ..format.recipe.parse import read_recipe

            try:
                return read_recipe(folder, variant).precision
            except BundleError:
                return None  # what is wrong is an error where the variant is opened
    return None


def _judge_host(folder: BundleFolder, name: Optional[str]) -> Dict[str, Any]:
    """The parts of a bundle that fit this machine: the keys of ``_HERE``."""
    manifest = folder.manifest
    host = describe_host(folder)
    chosen, problem = None, None
    without: Dict[str, str] = {}
    with contextlib.suppress(EdgecompileError):  # whoever opens it learns more
        without = find_opener(manifest).judge(folder, host, OpenRequest(variant=name))
    try:
        chosen, _ = choose_variant(manifest, host, name, without)
    except UnsupportedHostError as error:
        problem = error.message
    variants = []
    for item in manifest.variants:
        reasons = missing(item, host)
        unfit = without.get(item.name) or without.get(item.backend)
        verdict = "; ".join(reasons) or unfit or _ready(folder, item)
        if chosen is not None and chosen is not item and not reasons and not unfit:
            why = "was asked for" if chosen.name == name else "ranks higher"
            verdict += ", but {} {}".format(chosen.name, why)
        variants.append(
            {"name": item.name, "ok": not reasons, "reasons": reasons, "verdict": verdict}
        )
    return {
        "host": host.to_json(),
        "variants": variants,
        "chosen": None if chosen is None else chosen.name,
        "problem": problem,
        "device_bytes": None if chosen is None else device_bytes(manifest, chosen),
    }


def _ready(folder: BundleFolder, variant: Variant) -> str:
    """The notes on a variant that this machine's CPU can run."""
    if variant.backend == TRITON:
        from ..triton.variant import judge_triton_variant

        return judge_triton_variant(folder, variant)
    if variant.backend != TENSORRT:
        return "runs here"
    from ..gpu.variant import judge_gpu_variant

    return judge_gpu_variant(folder, variant)


def device_bytes(manifest: Manifest, variant: Variant) -> Dict[str, int]:
    """Bytes that running one variant needs, by kind; golden vectors and reports aren't needed."""
    files = manifest.files

    def size(*names: str) -> int:
        return sum(files[name].size for name in set(names))

    python = [name for name in files if name.startswith("runtime/") and name.endswith(".py")]
    if variant.backend == TENSORRT:
        # What the engine is built from lies beside the recipe. The engine isn't of the bundle.
        beside = variant.recipe.rpartition("/")[0] + "/"
        model = [name for name in files if name.startswith(beside)]
        result = {"model": size(*model), "python_runtime": size(*python)}
        result["total"] = sum(result.values())
        return result
    precision = manifest.precision if variant.gpu is None else variant.gpu.precision
    # torch's variants have no runtime library in the bundle: torch is on the device already.
    made = manifest.generation
    several = None if made is None or made.batch is None else made.batch.programs.get(variant.name)
    batch = [] if several is None else [several]
    native = [name for name in (variant.runtime, manifest.probes[variant.arch]) if name]
    result = {
        "weights": size(manifest.weights[precision]),
        "programs": size(*variant.programs, *batch),
        "native_runtime": size(*native),
        "python_runtime": size(*python),
    }
    result["total"] = sum(result.values())
    return result


def format_host(host: Dict[str, Any]) -> List[str]:
    """Lines about a machine."""
    versions = ", ".join("{} {}".format(key, value) for key, value in host["versions"].items())
    words = [host["arch"], host["model"], "with" if host["model"] else ""]
    text = "{} {} CPUs usable".format(" ".join(word for word in words if word), host["cpus"])
    if host["memory_bytes"]:
        text += ", {:.1f} GiB".format(host["memory_bytes"] / 2**30)
    if host["features"] is None:
        features = "not known: give a BUNDLE for {}, its probe asks the CPU".format(host["arch"])
    else:
        features = " ".join(host["features"]) or "none that variants ask for"
    return [
        "host      " + text,
        "          glibc {}, {}".format(host["glibc"] or "none", versions),
        "features  " + features,
    ]


def format_bundle(report: Dict[str, Any]) -> List[str]:
    """Lines about a bundle."""
    manifest = report["manifest"]
    versions = dict(manifest["built_by"])
    verified = versions.pop("verified", "")
    # A bundle without code for a CPU names no compilers.
    built = ", ".join("{} {}".format(key, value) for key, value in versions.items() if value)
    precision = manifest["precision"]
    if report["gpu_precision"] is not None:
        precision = "{} on the GPU, {} on the CPU".format(report["gpu_precision"], precision)
    lines = [
        "bundle    {} ({}), {:.1f} MB".format(manifest["name"], precision, report["bytes"] / 1e6),
        "built by  " + (built or "unknown"),
    ]
    if verified:
        lines.append("verified  " + verified)
    for key in ("inputs", "outputs"):
        for item in manifest[key]:
            shape = ", ".join("?" if dim is None else str(dim) for dim in item["shape"])
            bounds = item.get("bounds")
            limits = "" if bounds is None else "  {}..{}".format(*bounds)
            text = "{:<9} {}: {}[{}]{}"
            lines.append(text.format(key[:-1], item["name"], item["dtype"], shape, limits))
    for index, bucket in enumerate(manifest["buckets"]):
        ranges = ", ".join(
            "{} {}..{} (hint {})".format(axis, item["lo"], item["hi"], item["hint"])
            for axis, item in bucket["axes"].items()
        )
        padded = " of " + " and ".join(bucket["pad_axes"]) if "pad_axes" in bucket else ""
        lines.append("bucket {}  {}{}: {}".format(index, bucket["mode"], padded, ranges))
    if "generation" in manifest:
        spec = manifest["generation"]
        text = "generates {} tokens of context, {} caches of {:.1f} MB{}, ends with {}"
        ends = ", ".join(str(token) for token in spec["eos"]) or "nothing"
        size = report["cache_bytes"] / 1e6
        more = " without checkpoints" if "windows" in spec else ""
        lines.append(text.format(spec["max_context"], len(spec["caches"]), size, more, ends))
        if "encoder" in spec:
            start = ", ".join(str(token) for token in spec["start"])
            text = "{!r} of the bundle in {}/ is the source; texts begin with {}"
            lines.append(text.format(spec["source"], spec["encoder"], start))
    for item in report["variants"]:
        chosen = " (chosen)" if item["name"] == report["chosen"] else ""
        lines.append("variant   {}{}: {}".format(item["name"], chosen, item["verdict"]))
    for item in manifest["variants"]:
        if not item.get("gpu", {}).get("graphs", True):
            text = "variant   {}: runs without CUDA graphs, as sizes in it depend on values"
            lines.append(text.format(item["name"]))
    if report["problem"]:
        lines.append("problem   " + report["problem"])
    if report["device_bytes"]:
        parts = ", ".join(
            "{} {:.2f}".format(key.replace("_", " "), value / 1e6)
            for key, value in report["device_bytes"].items()
        )
        lines.append("needed    MB: " + parts)
    return lines
