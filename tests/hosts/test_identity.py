from __future__ import annotations

import json
import subprocess
import sys

import pytest

from edgecompile.hosts.identity import (
    CpuClock,
    cpu_identity,
    describe_machine,
    load_average,
    read_clock,
    usable_cpus,
)

SPIN = (
    "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\n"
    "print(flush=True)\ninput()"
)


def test_the_machine_is_described_in_plain_values() -> None:
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["cpu"] and machine["architecture"] and machine["kernel"]
    assert 1 <= machine["usable_cpus"] == usable_cpus() <= machine["cpus"]
    assert cpu_identity() == cpu_identity()
    assert all(flag in cpu_identity() for flag in machine.get("flags", []))
    assert all(value >= 0 for value in load_average())


def test_arithmetic_of_clocks() -> None:
    before = CpuClock(wall=10, busy=100, stolen=1, own=50)
    after = CpuClock(wall=20, busy=118, stolen=2, own=63)
    assert after.foreign_since(before) == pytest.approx(0.5)
    assert after.stolen_since(before) == pytest.approx(0.1)
    assert CpuClock(20, 101, 1, 63).foreign_since(before) == 0, "ticks are coarse"


def test_time_of_named_processes_is_ours() -> None:
    before = read_clock()
    if before is None:
        pytest.skip("no /proc here")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", SPIN], **pipes) as child:
        started = read_clock([child.pid])
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        named, unnamed = read_clock([child.pid]), read_clock()
        child.communicate(b"\n")
    assert named is not None and unnamed is not None and started is not None
    assert named.own - unnamed.own >= 0.4
    assert named.busy - started.busy >= 0.3
    assert read_clock([child.pid]) is None, "it is gone"
