"""Prints what the demo found: BENCH is what `edgecompile bench --against eager --json` says, INFO
what `python -m edgecompile.runtime info --json` says on the device.

    summary.py BENCH INFO
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def format_summary(bench: Mapping[str, Any], info: Mapping[str, Any]) -> list[str]:
    """The table for people, a line each."""
    ours, eager = bench["contenders"]["edgecompile"], bench["contenders"]["eager"]
    settings, need = bench["settings"], info["device_bytes"]
    variants = ", ".join(item["name"] for item in info["variants"])
    buckets = len(info["manifest"]["buckets"])
    row = "{:<36}{:>12}{:>16}{:>14}".format

    def compare(title: str, key: str, form: str, scale: float = 1.0) -> str:
        mine, theirs = ours[key], eager[key]
        if mine is None or theirs is None:
            return row(title, "–", "–", "")
        values = (form.format(mine * scale), form.format(theirs * scale))
        return row(title, *values, f"{mine / theirs:.2f}")

    def size(title: str, *parts: str) -> str:
        return row(title, f"{sum(need[part] for part in parts) / 1e6:.2f}", "", "")

    bundle = row("bundle, MB", f"{info['bytes'] / 1e6:.2f}", "", "").rstrip()
    lines = [
        f"all-MiniLM-L6-v2, {info['manifest']['precision']}, batch 1, {settings['threads']} threads "
        f"on {info['host']['model'] or info['host']['arch']}",
        f"docstrings of {bench['lengths']['min']} to {bench['lengths']['max']} tokens, "
        f"{settings['rounds']} rounds of {settings['runs']} in turn",
        "",
        row("", "edgecompile", "PyTorch eager", "ratio"),
        compare("milliseconds, mean", "mean_ms", "{:.2f}"),
        compare("milliseconds, p50", "p50", "{:.2f}"),
        compare("milliseconds, p99", "p99", "{:.2f}"),
        compare("cold start to first output, ms", "cold_s", "{:.0f}", 1e3),
        compare("memory, MB", "rss_mb", "{:.0f}"),
        "",
        f"{bundle}  {variants}; {buckets} bucket{'s' * (buckets > 1)}",
        size("the device needs beside numpy, MB", "total"),
        size("  weights", "weights"),
        size(f"  code for {info['chosen']}", "programs", "native_runtime"),
        size("  Python of the runtime", "python_runtime"),
        "",
        f"largest difference to eager's embeddings: {ours['max_abs_error']:.1e}",
    ]
    lines += [f"doubt: {text}" for text in bench["warnings"]]
    return [line.rstrip() for line in lines]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    documents = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    print("\n".join(format_summary(*documents)))
