"""What ``info`` tells: a bundle's contents, and what of it fits this machine."""

import os
from typing import Any, Dict, List, Optional

from .cpu import choose_variant, describe_host, missing
from .errors import UnsupportedHostError
from .files import BundleFolder
from .manifest import MANIFEST_NAME, Manifest, Variant
from .model import VARIANT_VARIABLE


def describe_bundle(path: str, wanted: Optional[str] = None) -> Dict[str, Any]:
    """Opens a bundle's manifest and runs its CPU probe, but loads nothing else.

    Args:
        path: the bundle.
        wanted: the variant to judge instead of the best one.

    Returns:
        Plain JSON values: "manifest", "manifest_sha256", "host", "variants" (each with "ok" and
        "reasons"), "chosen" (or None, with "problem"), "bytes" of the bundle and "device_bytes",
        what this machine needs of it beside Python and numpy.

    Raises:
        BundleError: it is missing, malformed or damaged.
        NativeError: the probe can't be run.
    """
    folder = BundleFolder(path)
    try:
        folder.check_sizes()
        manifest = folder.manifest
        host = describe_host(folder)
        chosen, problem = None, None
        try:
            wanted = wanted or os.environ.get(VARIANT_VARIABLE) or None
            chosen, _ = choose_variant(manifest, host, wanted)
        except UnsupportedHostError as error:
            problem = error.message
        variants = []
        for item in manifest.variants:
            reasons = missing(item, host)
            variants.append({"name": item.name, "ok": not reasons, "reasons": reasons})
        whole = manifest.to_json()
        total = sum(entry.size for entry in manifest.files.values())
        return {
            "path": path,
            "manifest_sha256": folder.manifest_sha256,
            "host": host.to_json(),
            "variants": variants,
            "chosen": None if chosen is None else chosen.name,
            "problem": problem,
            "bytes": total + os.path.getsize(os.path.join(path, MANIFEST_NAME)),
            "device_bytes": None if chosen is None else device_bytes(manifest, chosen),
            "manifest": {key: value for key, value in whole.items() if key != "files"},
        }
    finally:
        folder.close()


def device_bytes(manifest: Manifest, variant: Variant) -> Dict[str, int]:
    """Bytes that running one variant needs, by kind; golden vectors and reports aren't needed."""
    files = manifest.files

    def size(*names: str) -> int:
        return sum(files[name].size for name in set(names))

    python = [name for name in files if name.startswith("runtime/") and name.endswith(".py")]
    result = {
        "weights": size(manifest.weights[manifest.precision]),
        "programs": size(*variant.programs),
        "native_runtime": size(variant.runtime, manifest.probes[variant.arch]),
        "python_runtime": size(*python),
    }
    result["total"] = sum(result.values())
    return result


def format_host(host: Dict[str, Any]) -> List[str]:
    """Lines about a machine."""
    versions = ", ".join("{} {}".format(key, value) for key, value in host["versions"].items())
    return [
        "host      {} {}, {} CPUs usable".format(host["arch"], host["model"], host["cpus"]),
        "          glibc {}, {}".format(host["glibc"] or "none", versions),
        "features  " + (" ".join(host["features"]) or "unknown without a bundle's probe"),
    ]


def format_bundle(report: Dict[str, Any]) -> List[str]:
    """Lines about a bundle."""
    manifest = report["manifest"]
    built = ", ".join("{} {}".format(key, value) for key, value in manifest["built_by"].items())
    lines = [
        "bundle    {} ({}), {:.1f} MB".format(
            manifest["name"], manifest["precision"], report["bytes"] / 1e6
        ),
        "built by  " + (built or "unknown"),
    ]
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
    for item in report["variants"]:
        verdict = "runs here" if item["ok"] else "; ".join(item["reasons"])
        chosen = " (chosen)" if item["name"] == report["chosen"] else ""
        lines.append("variant   {}{}: {}".format(item["name"], chosen, verdict))
    if report["problem"]:
        lines.append("problem   " + report["problem"])
    if report["device_bytes"]:
        parts = ", ".join(
            "{} {:.2f}".format(key.replace("_", " "), value / 1e6)
            for key, value in report["device_bytes"].items()
        )
        lines.append("needed    MB: " + parts)
    return lines
