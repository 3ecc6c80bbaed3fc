"""Tries hostile bundles on both loaders; see scripts/fuzz-bundle and docs/security.md."""

from __future__ import annotations

import argparse
import json
import sys

from tests.hostile.fuzzer import Report, build_programs, open_fuzzer

MOST = 10**9


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz-bundle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin at this bundle")
    parser.add_argument("--case", type=int, metavar="N", help="try one bundle, and show it")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args()


def format_report(report: Report) -> list[str]:
    """Lines for people."""
    lines = []
    for item in report.findings:
        lines.append(f"case {item.number} ({', '.join(item.done)}):")
        lines += [f"  {text}" for text in item.texts]
    lines += report.endings
    slowest = ", ".join(
        f"{name} {item.value:.2f} s (case {item.number})" for name, item in report.slowest.items()
    )
    lines += [
        f"seed {report.seed}: {report.cases} bundles in {report.seconds:.0f} s, "
        f"{report.accepted} accepted, {len(report.rules)} rules broken",
        f"slowest: {slowest}",
        f"most memory in Python: {report.largest.value:.0f} MiB (case {report.largest.number})",
        f"libraries looked at before they were loaded: {report.libraries_checked}",
        f"findings: {len(report.findings)}",
    ]
    return lines


def main() -> int:
    """Exit code 1 if anything was found."""
    options = parse_arguments()
    one = options.case is not None
    numbers = [options.case] if one else range(options.first, MOST)
    with open_fuzzer(options.seed, build_programs()) as fuzzer:
        fuzzer.run(
            numbers,
            seconds=options.seconds,
            say=lambda text: print(text, file=sys.stderr, flush=True),
            keep=one,
        )
    report = fuzzer.report
    print(
        json.dumps(report.to_json(), indent=1) if options.json else "\n".join(format_report(report))
    )
    return 1 if report.findings or report.endings else 0


if __name__ == "__main__":
    sys.exit(main())
