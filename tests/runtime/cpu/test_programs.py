"""programs: loaded once, when they are asked for, by whichever thread asks first."""

from __future__ import annotations

import threading

import pytest

from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.model.open_bundle import open_bundle


def test_threads_share_one_program(native_bundle: str) -> None:
    with open_bundle(native_bundle, warmup=False) as model:
        programs = model._programs
        assert len(programs) == len(model.manifest.buckets) and programs.loaded == []
        found: list[object] = []
        started = threading.Barrier(4)

        def work() -> None:
            started.wait()
            found.append(programs.get(0))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(item) for item in found}) == 1 and programs.loaded == [0]
        program = programs.get(0)
    assert programs.loaded == []
    with pytest.raises(NativeError, match="the program is closed"):
        program.run([])
