"""``edgecompile inspect``: the contents of a bundle, and the machines that can run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import complete_target
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

_EPILOG = """\b
Examples:
  edgecompile inspect minilm.ecb
  edgecompile inspect minilm.ecb --target raspberry-pi-5 --audit
  edgecompile inspect minilm.ecb --target ./my-board.toml --json
"""


@click.command("inspect", cls=Command, epilog=_EPILOG, short_help="Show what a bundle holds.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--target",
    "-t",
    metavar="NAME",
    shell_complete=complete_target,
    help="Check whether these devices could run it: a name from 'edgecompile targets list', or a TOML file.",
)
@click.option(
    "--host",
    is_flag=True,
    help="Check whether this machine could run it: loads the bundle's CPU probe.  [default without "
    "--target]",
)
@click.option(
    "--audit",
    is_flag=True,
    help="Audit every library: instructions, glibc, libraries and symbols that it needs. Takes "
    "seconds.",
)
@click.option("--hash", "hashes", is_flag=True, help="Compare every file with its recorded hash.")
def command(
    session: Session, bundle: Path, target: str | None, host: bool, audit: bool, hashes: bool
) -> None:
    """Show BUNDLE's inputs, outputs, buckets, variants and sizes.

    Reports for each variant whether the devices of --target and this machine could run it, and why
    not. --audit judges the libraries by the target's profile, or else by the bundle's own promises.
    Loads no code of the bundle, except for its CPU probe to judge this machine.
    """
    from edgecompile.bundle.inspection import audit_bundle, judge_target
    from edgecompile.runtime.commands.info import describe_bundle
    from edgecompile.runtime.format.files.folder import BundleFolder
    from edgecompile.targets.profile import load_target

    profile = None if target is None else load_target(target)
    folder = BundleFolder(str(bundle))
    try:
        folder.check_sizes()
        if hashes:
            with session.console.step("hash the files"):
                folder.check_hashes()
        manifest = folder.manifest
    finally:
        folder.close()
    document = describe_bundle(str(bundle), probe=host or profile is None)
    document["target"] = None if profile is None else judge_target(manifest, profile)
    document["audit"] = None
    if audit:
        with session.console.step("audit the libraries"):
            verdicts = audit_bundle(bundle, manifest, profile)
        document["audit"] = [verdict.to_json() for verdict in verdicts]
    session.emit(document, lambda: _table(document))


def _table(document: dict[str, Any]) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts, heading, stack, table
    from edgecompile.precision import describe_label
    from edgecompile.units import format_bytes

    manifest = document["manifest"]
    versions = dict(manifest["built_by"])
    verified = versions.pop("verified", "–")
    built = ", ".join(f"{name} {text}" for name, text in versions.items() if text)
    device = document["device_bytes"]
    tolerance = manifest["tolerance"]
    about = [
        ("name", manifest["name"]),
        ("precision", describe_label(manifest["precision"], manifest.get("plan") or {})),
        ("tolerance", f"{tolerance['atol']:g} + {tolerance['rtol']:g} · max |want|"),
        ("size", format_bytes(document["bytes"])),
        ("on the device", "–" if device is None else format_bytes(device["total"])),
        *_padding_line(manifest),
        *_state_line(manifest),
        *_policy_line(manifest),
        *_quality_line(manifest),
        *_gpu_line(manifest),
        ("golden", f"{len(manifest['golden'])} vectors"),
        ("built by", built or "–"),
        ("verified", verified),
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
    columns, variants = _variant_rows(document)
    return stack(
        facts(about),
        heading("Inputs and outputs"),
        table(("", "name", "type", "shape", "values"), signature, left=5),
        heading("Buckets"),
        table(("bucket", "mode", "sizes", "tuned for"), buckets, left=4),
        heading("Variants"),
        table(columns, variants, left=len(columns)),
        *_target_lines(document["target"]),
        *_audit_lines(document["audit"]),
    )


def _state_line(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """The outputs that are inputs of a stream's next run."""
    pairs = [f"{item['output']} → {item['input']}" for item in manifest.get("state", ())]
    return [("state", ", ".join(pairs))] if pairs else []


def _policy_line(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """The observations of a robot's policy, and how many actions follow a run."""
    policy = manifest.get("policy")
    if policy is None:
        return []
    count = "the mean" if policy.get("ensemble") is not None else str(policy["action_steps"])
    return [("policy", f"{', '.join(policy['observations'])} → {count} of each chunk's actions")]


_PADDING = {
    "proven": "proven to leave the outputs as they are",
    "assumed": "assumed to leave the outputs as they are (--assume-paddable); nothing proves it",
}


def _padding_line(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """The builder's facts on padding; none where nothing is padded or they are unknown."""
    said = (manifest.get("plan") or {}).get("padding")
    return [("padding", _PADDING.get(said, str(said)))] if said else []


def _quality_line(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """The figures of a language model's narrow weights, as far as the builder left them; none of another model."""
    figures = (manifest.get("plan") or {}).get("quality")
    if not isinstance(figures, dict):
        return []
    names = {"perplexity_ratio": "perplexity ×", "mean_kl": "mean KL", "p99_kl": "p99 KL"}
    parts = [
        f"{text} {figures[name]:.4g}"
        for name, text in names.items()
        if isinstance(figures.get(name), int | float)
    ]
    top1, tokens, texts = (figures.get(name) for name in ("top1", "tokens", "texts"))
    if isinstance(top1, int | float):
        parts.append(f"the same likeliest token at {100 * top1:.1f} % of {tokens} positions")
    if figures.get("caches_alone") is True:
        texts = f"{texts}, rounding the caches alone"
    lines = [("quality", f"{', '.join(parts)} of {texts}")] if parts else []
    matrices = figures.get("matrices")
    if isinstance(matrices, dict) and matrices:
        counts = ", ".join(f"{count} in {name}" for name, count in matrices.items())
        lines.append(("matrices", counts))
    return lines


def _gpu_line(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """A line on a bundle's programs for a GPU and the checks that they passed; none where there are none."""
    gpus = [item["gpu"] for item in manifest["variants"] if item.get("gpu")]
    if not gpus:
        return []
    gpu = gpus[0]  # that of another architecture's host has the same kernels
    code = ["machine code for " + ", ".join(gpu["compute_capabilities"])]
    code += [f"PTX from {gpu['ptx']} on"] if gpu["ptx"] else []
    checks = ", ".join(gpu.get("checks", ())) or "nothing"
    code += [] if gpu.get("graphs", True) else ["no CUDA graphs, as sizes depend on values"]
    return [("GPU", f"{gpu['precision']}; {'; '.join(code)}; checked without one by {checks}")]


def _variant_rows(document: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the variants' table, with a column for whoever was asked about."""
    target, host = document["target"], document["host"]
    columns = ["variant", *(["runs here"] if host else [])]
    columns += [f"runs on {target['name']}"] if target else []
    here = {item["name"]: item for item in document["variants"] or ()}
    rows = []
    for item in document["manifest"]["variants"]:
        name = item["name"]
        row = [name]
        if host:
            chosen = " (chosen)" if name == document["chosen"] else ""
            row.append(("yes" if chosen else here[name]["verdict"]) + chosen)
        if target:
            reasons = target["variants"][name]
            first = " (chosen)" if name in target["chosen"].values() else ""
            row.append("; ".join(reasons) if reasons else f"all of them{first}")
        rows.append([*row, item.get("glibc") or "–"])
    return [*columns, "glibc"], rows


def _target_lines(target: dict[str, Any] | None) -> list[RenderableType]:
    if target is None:
        return []
    from edgecompile.cli.terminal.tables import facts

    verdict = "can run it" if target["ok"] else f"can't: {target['problem']}"
    return [facts([(target["name"], verdict)])]


def _audit_lines(verdicts: list[dict[str, Any]] | None) -> list[RenderableType]:
    if verdicts is None:
        return []
    from edgecompile.cli.terminal.tables import heading, table

    rows = [
        (
            verdict["variant"],
            verdict["library"],
            "fit" if verdict["ok"] else "unfit",
            verdict["glibc"] or "–",
            "; ".join(_finding(finding) for finding in verdict["findings"]) or "–",
        )
        for verdict in verdicts
    ]
    columns = ("variant", "library", "verdict", "glibc", "findings")
    return [heading("Audit"), table(columns, rows, left=5)]


def _finding(finding: dict[str, Any]) -> str:
    cure = f" ({finding['cure']})" if finding["cure"] else ""
    return f"{finding['what']}{cure}"
