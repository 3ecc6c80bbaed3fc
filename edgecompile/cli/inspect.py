"""``edgecompile inspect``: what a bundle holds, and what could run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options import target_option
from edgecompile.cli.session import Command, Session, output_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.runtime.manifest import Manifest
    from edgecompile.targets import TargetProfile

__all__ = ["command"]

_EPILOG = """\b
Examples:
  edgecompile inspect minilm.ecb
  edgecompile inspect minilm.ecb --target cpu-x86-64 --json
"""


@click.command("inspect", cls=Command, epilog=_EPILOG, short_help="Show what a bundle holds.")
@click.argument("bundle", type=click.Path(path_type=Path))
@target_option
@click.option("--hash", "hashes", is_flag=True, help="Compare every file with its recorded hash.")
@output_options
@click.pass_obj
def command(session: Session, bundle: Path, target: str, hashes: bool) -> None:
    """Show BUNDLE's inputs, outputs, buckets, variants and sizes.

    It says which variants this host could run and which the devices of --target, and audits the
    libraries anew. No code of the bundle is loaded but its CPU probe.
    """
    from edgecompile.runtime.describe import describe_bundle
    from edgecompile.runtime.files import BundleFolder
    from edgecompile.targets import load_target

    profile = load_target(target)
    folder = BundleFolder(str(bundle))
    try:
        folder.check_sizes()
        if hashes:
            with session.console.step("hash the files"):
                folder.check_hashes()
        manifest = folder.manifest
    finally:
        folder.close()
    document = describe_bundle(str(bundle))
    document["target"] = {
        "name": profile.name,
        "variants": {v.name: _lacking(v.arch, v.requires, profile) for v in manifest.variants},
    }
    with session.console.step("audit the libraries"):
        document["audit"] = _audit(bundle, manifest, profile)
    session.emit(document, lambda: _table(document, profile))


def _lacking(arch: str, requires: tuple[str, ...], profile: TargetProfile) -> list[str]:
    """What the target's devices lack for a variant; empty if all of them can run it."""
    if arch not in profile.archs:
        return [f"architecture {arch}"]
    return sorted(set(requires) - set(profile.features_of(arch)))


def _audit(bundle: Path, manifest: Manifest, profile: TargetProfile) -> list[dict[str, Any]]:
    from edgecompile.audit import judge
    from edgecompile.elf import read_elf
    from edgecompile.errors import TargetError
    from edgecompile.targets import load_variant

    verdicts = []
    for variant in manifest.variants:
        try:
            spec = load_variant(variant.name)
        except TargetError:
            continue  # made with a variant that isn't installed here
        native = bundle / variant.runtime
        info = read_elf(native)
        verdicts.append(judge(native, spec, profile).to_json())
        for program in variant.programs:
            verdict = judge(
                bundle / program,
                spec,
                profile,
                allowed_needed=(info.soname or native.name,),
                runtime_exports=info.exported,
            )
            verdicts.append(verdict.to_json())
    return verdicts


def _table(document: dict[str, Any], profile: TargetProfile) -> RenderableType:
    from edgecompile.cli.console import facts, heading, stack, table
    from edgecompile.units import format_bytes

    manifest = document["manifest"]
    built = ", ".join(f"{name} {text}" for name, text in manifest["built_by"].items())
    device = document["device_bytes"]
    tolerance = manifest["tolerance"]
    about = [
        ("name", manifest["name"]),
        ("precision", manifest["precision"]),
        ("tolerance", f"{tolerance['atol']:g} + {tolerance['rtol']:g} · max |want|"),
        ("size", format_bytes(document["bytes"])),
        ("on the device", "–" if device is None else format_bytes(device["total"])),
        ("golden", f"{len(manifest['golden'])} vectors"),
        ("built by", built or "–"),
        ("sha256", f"{document['manifest_sha256']}  manifest.json"),
    ]
    signature = [
        (
            kind,
            item["name"],
            item["dtype"],
            " × ".join(str(size) for size in item["shape"]),
            "–" if item.get("bounds") is None else "{}–{}".format(*item["bounds"]),
        )
        for kind, items in (("input", manifest["inputs"]), ("output", manifest["outputs"]))
        for item in items
    ]
    buckets = [
        (
            f"{index}",
            bucket["mode"],
            ", ".join(f"{axis} {span['lo']}–{span['hi']}" for axis, span in bucket["axes"].items()),
            ", ".join(f"{span.get('hint') or span['hi']}" for span in bucket["axes"].values()),
        )
        for index, bucket in enumerate(manifest["buckets"])
    ]
    here = {item["name"]: item for item in document["variants"]}
    variants = []
    for item in manifest["variants"]:
        name = item["name"]
        lacking = document["target"]["variants"][name]
        chosen = " (chosen)" if name == document["chosen"] else ""
        variants.append(
            (
                name,
                f"yes{chosen}" if here[name]["ok"] else "; ".join(here[name]["reasons"]),
                "all of them" if not lacking else "only those with " + ", ".join(lacking),
                item.get("glibc") or "–",
            )
        )
    audit = [
        (
            verdict["variant"],
            verdict["library"],
            "fit" if verdict["ok"] else "unfit",
            "; ".join(finding["what"] for finding in verdict["findings"]) or "–",
        )
        for verdict in document["audit"]
    ]
    return stack(
        facts(about),
        heading("Inputs and outputs"),
        table(("", "name", "type", "shape", "values"), signature, left=5),
        heading("Buckets"),
        table(("bucket", "mode", "sizes", "tuned for"), buckets, left=4),
        heading("Variants"),
        table(("variant", "runs here", f"runs on {profile.name}", "glibc"), variants, left=4),
        heading("Audit"),
        table(("variant", "library", "verdict", "findings"), audit, left=4),
    )
