"""Builds engines of the folders that write_zoo.py wrote, and runs their golden vectors, on a device.

python benchmarks/engines/zoo.py FOLDER RESULTS.jsonl [PROCESSES]   one JSON line per architecture
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from engine import Opened, Program, build, make_stream, named

from edgecompile.runtime.finish.engine_build import BuildFailure
from edgecompile.runtime.format.golden.compare import compare_arrays
from edgecompile.runtime.format.manifest.schema import Tolerance

#: As in bundles.
_TOLERANCES = {"fp32": Tolerance(atol=1e-6, rtol=2e-5), "fp16": Tolerance(atol=1e-6, rtol=2e-2)}
_LEVEL = 0
_NARROWED = {"int64": np.int32}


def check(folder: Path) -> dict[str, Any]:
    """One architecture's line: ``state`` is right, wrong, unbuilt or failed."""
    document = json.loads((folder / "zoo.json").read_text())
    line = {key: document[key] for key in ("name", "group", "precision", "refused")}
    line["state"] = "failed"
    with named(line), tempfile.TemporaryDirectory() as scratch:
        engine = Path(scratch, "engine.plan")
        begun = time.monotonic()
        try:
            build(folder / "model.onnx", [document["inputs"]], engine, _LEVEL, document["float32"])
        except BuildFailure as failure:
            return {**line, "state": "unbuilt", "error": str(failure)[:600]}
        line["build_s"] = round(time.monotonic() - begun, 1)
        opened = Opened(engine)
        largest = {name: shapes[2] for name, shapes in document["inputs"].items()}
        program = Program(opened, 0, make_stream(0), largest)
        errors, reasons = [0.0], []
        for path in sorted(folder.glob("case-*.npz")):
            case = np.load(str(path))
            inputs = {key[3:]: case[key] for key in case.files if key.startswith("in:")}
            outputs = program.run(inputs)
            for name, got in outputs.items():
                want = case["out:" + name]
                got = got.astype(want.dtype) if str(want.dtype) in _NARROWED else got
                agreement = compare_arrays(got, want, _TOLERANCES[line["precision"]])
                errors.append(agreement.max_abs_error / (agreement.scale or 1.0))
                if not agreement.ok:
                    reasons.append(f"{path.stem} {name}: {agreement.reason}")
        line.update(state="wrong" if reasons else "right", error="; ".join(reasons[:3]))
        line["relative_error"] = max(errors)
    return line


class Workers:
    """Processes that take folders in turn; one that ends without an answer is started again."""

    def __init__(self, folders: list[Path], results: Path, count: int) -> None:
        self._folders, self._results = folders, results
        self._lock = threading.Lock()
        threads = [threading.Thread(target=self._serve) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self) -> None:
        process = None
        while True:
            with self._lock:
                if not self._folders:
                    break
                folder = self._folders.pop(0)
            if process is None:
                command = [sys.executable, __file__, "--worker"]
                pipe = subprocess.PIPE
                process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(str(folder) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                ended = f"the process ended with {process.wait()}"
                answer = json.dumps({"name": folder.name, "state": "failed", "error": ended}) + "\n"
                process = None
            with self._lock, self._results.open("a") as stream:
                stream.write(answer)
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()


def main(arguments: list[str]) -> None:
    """Answers folders' names, or starts workers that do."""
    if arguments[0] == "--worker":
        for name in sys.stdin:
            print(json.dumps(check(Path(name.strip()))), flush=True)
        return
    folders = sorted(path.parent for path in Path(arguments[0]).glob("*/model.onnx"))
    ready = [path for path in folders if (path / "zoo.json").exists()]
    Workers(ready, Path(arguments[1]), int(arguments[2]) if len(arguments) > 2 else 8)


if __name__ == "__main__":
    main(sys.argv[1:])
