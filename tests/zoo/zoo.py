"""Takes the zoo's architectures through edgecompile and writes what became of each.

See scripts/zoo for the usual calls.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.zoo.catalogue import ENTRIES
from tests.zoo.children import Limits, run_children, run_there
from tests.zoo.entry import Entry
from tests.zoo.report import read_results, summary_line, write_reports
from tests.zoo.worker import STAGES, run_entry

REPOSITORY = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if the mark was met by what ran, 1 if not."""
    options = _parse(arguments)
    results = options.work / "results"
    results.mkdir(parents=True, exist_ok=True)
    code, commit = _code_key(), _commit()
    chosen = _choose(options)
    keys = {name: _key(ENTRIES[name], options.upto, code) for name in chosen}
    stored = read_results(results)
    fresh = {n for n in chosen if stored.get(n, {}).get("key") == keys[n]}
    todo = [n for n in chosen if not ((options.resume or options.report) and n in fresh)]
    print(f"{len(chosen)} architectures, {len(chosen) - len(todo)} known", file=sys.stderr)
    if options.report:
        latest = _earlier(options.earlier) | {n: stored[n] for n in chosen if n in fresh}
        return _report(latest, options)
    started = time.perf_counter()
    run = run_there if options.on == "ray" else _run_here
    for number, (name, result) in enumerate(run(todo, options), 1):
        if result.setdefault("key", keys[name]) != keys[name]:
            raise SystemExit(
                f"error: {result['machine']} of the cluster has other sources than this one"
            )
        result |= {"name": name, "group": ENTRIES[name].group, "upto": options.upto}
        result |= {"commit": commit}
        _write(results / f"{name}.json", result)
        spent = time.perf_counter() - started
        print(f"[{number}/{len(todo)} {spent:5.0f} s] {summary_line(result)}", file=sys.stderr)
    latest = {name: result for name, result in read_results(results).items() if name in chosen}
    return _report(_earlier(options.earlier) | latest, options)


def _run_here(
    todo: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and what became of them, in the order of ending."""
    _warm_up()
    device = options.device_python or os.environ.get("EDGECOMPILE_DEVICE_PYTHON", sys.executable)

    def action(name: str) -> dict[str, Any]:
        torch.set_num_threads(1)
        folder = options.work / "build" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            return run_entry(ENTRIES[name], options.upto, folder, device).to_json()
        finally:
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)

    limits = Limits(memory=options.memory << 30)
    jobs = options.jobs or 1
    for child in run_children(todo, action, options.work / "logs", jobs=jobs, limits=limits):
        result: dict[str, Any] = child.result or {"status": "crashed", "reason": child.death}
        yield child.name, result | {"wall_s": round(child.seconds, 1)}


def _report(results: Mapping[str, Mapping[str, Any]], options: argparse.Namespace) -> int:
    passed, total = write_reports(results, options, absent=[n for n in ENTRIES if n not in results])
    print(f"{passed} of {total} that eager runs passed", file=sys.stderr)
    return 0 if total and passed >= 0.97 * total else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/zoo", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these architectures or groups")
    parser.add_argument(
        "--jobs", type=int, help="processes at a time; default: 1, of a cluster one for each CPU"
    )
    parser.add_argument(
        "--on", choices=("local", "ray"), default="local",
        help="this machine, or those of the Ray cluster at RAY_ADDRESS, with the same sources",
    )  # fmt: skip
    parser.add_argument("--upto", choices=STAGES, default="build", help="the last stage")
    parser.add_argument(
        "--resume", action="store_true", help="keep results that nothing has changed since"
    )
    parser.add_argument(
        "--report", action="store_true", help="run nothing: report what --resume would keep"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")
    parser.add_argument("--docs", action="store_true", help="write docs/zoo.md and a dated record")
    parser.add_argument(
        "--earlier", type=Path, metavar="RECORD", help="take what isn't run now from this record"
    )
    parser.add_argument("--work", type=Path, default=REPOSITORY / ".zoo", help="results and logs")
    parser.add_argument("--keep", action="store_true", help="keep what was built")
    parser.add_argument("--memory", type=int, default=16, metavar="GIB", help="of each process")
    parser.add_argument("--device-python", help="an interpreter with numpy and without torch")
    parser.add_argument("--list", action="store_true", help="name the architectures and end")
    options = parser.parse_args(arguments)
    if options.list:
        for entry in ENTRIES.values():
            print(f"{entry.group:20} {entry.name}")
        raise SystemExit(0)
    return options


def _choose(options: argparse.Namespace) -> list[str]:
    names: Sequence[str] = options.only or list(ENTRIES)
    groups = {entry.group for entry in ENTRIES.values()}
    unknown = [name for name in names if name not in ENTRIES and name not in groups]
    if unknown:
        raise SystemExit(f"error: the zoo has no {', '.join(unknown)}; --list names them")
    if options.only:
        # In the order in which they are named.
        return list(dict.fromkeys(n for w in names for n in _named(w)))
    return list(ENTRIES)


def _named(word: str) -> list[str]:
    return [n for n, entry in ENTRIES.items() if word in (n, entry.group)]


def _earlier(record: Path | None) -> dict[str, dict[str, Any]]:
    """The results of an earlier record, by name, each with the commit that it was run at."""
    if record is None:
        return {}
    document = json.loads(record.read_text())
    models = document["models"].items()
    return {
        n: {"name": n, "commit": document.get("commit"), **m} for n, m in models if n in ENTRIES
    }


def _commit() -> str | None:
    """The commit that is run, with a plus sign if files differ from it."""
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--exclude=*", "--dirty=+"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _code_key() -> str:
    """Identifies what shapes every result: edgecompile's own sources, torch and transformers."""
    import transformers

    digest = hashlib.sha256(f"{torch.__version__} {transformers.__version__}".encode())
    package = REPOSITORY / "edgecompile"
    sources = [p for kind in ("py", "cpp", "h", "c") for p in package.rglob(f"*.{kind}")]
    for path in sorted(sources):
        if "bench" not in path.parts and "cli" not in path.parts:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _key(entry: Entry, upto: str, code: str) -> str:
    digest = hashlib.sha256(f"{entry.name} {entry.group} {upto} {code}".encode())
    here = Path(__file__).parent
    for name in ("entry", "worker"):
        digest.update((here / f"{name}.py").read_bytes())
    for source in entry.sources:
        path = here / "models" / f"{source}.py"
        # What isn't a file's name is the data itself.
        digest.update(path.read_bytes() if source.isidentifier() else source.encode())
    return digest.hexdigest()[:16]


def _warm_up() -> None:
    """Imports what every child needs, once; nothing here may start a thread."""
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.export
    import transformers

    # Inductor's own pool of compilers would be forked, too.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in ("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "BertModel"):
        getattr(transformers, name)


def _write(path: Path, value: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
