"""coldstart: fresh processes, what they say, and the memory of this one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.measure.coldstart import (
    cold_load,
    measure_cold_loads,
    measure_cold_start,
    read_memory,
)
from edgecompile.runtime.model.open_bundle import open_bundle


def test_memory_of_a_process() -> None:
    before = read_memory()
    assert before["peak"] >= before["resident"] > 10 << 20
    # A process of its own: here memory that earlier tests left may go at the same time.
    source = (
        "import numpy as np; from edgecompile.runtime.measure.coldstart import read_memory; before = read_memory(); "
        "block = np.ones(16 << 20); print(read_memory()['anonymous'] - before['anonymous'])"
    )
    grown = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    ).stdout
    assert 120 << 20 < int(grown) < 140 << 20


def test_a_cold_start_that_fails_says_why() -> None:
    with pytest.raises(NativeError, match=r"ended with 20: error: .*nowhere"):
        measure_cold_start("/nowhere", None, threads=None, variant=None, verify="auto", count=1)


def test_loading_each_program(native_bundle: str) -> None:
    with open_bundle(native_bundle, warmup=False) as model:
        manifest, name = model.manifest, model.info["variant"]
    programs = next(item.programs for item in manifest.variants if item.name == name)
    seen = cold_load(native_bundle, threads=1, variant=None, verify="fast")
    assert len(seen["load_ms"]) == len(set(programs)) and min(seen["load_ms"]) > 0

    measured = measure_cold_loads(native_bundle, threads=1, variant=None, verify="auto", count=2)
    assert measured["open_ms"] > 0 and measured["load_ms"] > 0


def test_the_first_program_does_not_count_where_there_are_more(
    native_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [{"open_ms": 5.0, "load_ms": [90.0, 2.0, 4.0]}, {"open_ms": 7.0, "load_ms": [80.0, 3.0]}]
    monkeypatch.setattr("edgecompile.runtime.measure.coldstart._start", lambda *a, **k: said)
    options = {"threads": None, "variant": None, "verify": "auto"}
    measured = measure_cold_loads(native_bundle, count=2, **options)
    assert measured == {"open_ms": 6.0, "load_ms": 3.0}
    said[:] = [{"open_ms": 5.0, "load_ms": [9.0]}]
    assert measure_cold_loads(native_bundle, count=1, **options)["load_ms"] == 9.0
