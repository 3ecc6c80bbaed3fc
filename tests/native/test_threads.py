"""The thread pool, and g++ -fopenmp code on it with libgomp's names renamed to ours."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from edgecompile.toolchain.compilers import (
    Toolchain,
    rename_symbols,
    run_tool,
    undefined_symbols,
)
from edgecompile.toolchain.native import compile_native
from tests.native.conftest import (
    HERE,
    KERNEL_SOURCES,
    NATIVE,
    POOL_SOURCES,
    Build,
    march_flags,
    runnable_marches,
    sanitizer_flags,
    unsanitized_tools,
)

I64 = ctypes.c_int64


@pytest.fixture(scope="module")
def pool(build_native: Build) -> ctypes.CDLL:
    lib = ctypes.CDLL(
        str(build_native("kernels", [*KERNEL_SOURCES, HERE / "kernels" / "kernels_harness.cpp"]))
    )
    for name in (
        "t_many_jobs",
        "t_side_by_side",
        "t_concurrent_hosts",
        "t_nested",
        "t_team_barriers",
    ):
        getattr(lib, name).restype = I64
    return lib


def count_tasks(pool: ctypes.CDLL, n: int, spin: int = 0) -> np.ndarray:
    counts = np.zeros(max(n, 1), np.int32)
    pool.t_count_tasks(I64(n), ctypes.c_void_p(counts.ctypes.data), I64(spin))
    return counts[:n]


@pytest.fixture(params=[1, 2, 3, 7])
def threads(pool: ctypes.CDLL, request: pytest.FixtureRequest) -> int:
    pool.t_set_num_threads(request.param)
    return int(request.param)


def test_the_default_is_the_affinity_mask(pool: ctypes.CDLL) -> None:
    pool.t_set_num_threads(0)
    assert 1 <= pool.t_num_threads() <= len(os.sched_getaffinity(0))
    code = (
        "import os, ctypes, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(ctypes.CDLL(sys.argv[1]).t_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, pool._name], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_cpus_may_be_taken_away_between_jobs(pool: ctypes.CDLL) -> None:
    """Its workers are those of before; they share what is left, and get back what comes back."""

    def leave(mask: set[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.sched_setaffinity(int(thread), mask)

    cpus = os.sched_getaffinity(0)
    pool.t_set_num_threads(3)
    assert (count_tasks(pool, 40) == 1).all()
    try:
        for mask in ({min(cpus)}, {max(cpus)}, cpus):
            leave(mask)
            assert pool.t_num_threads() == 3
            assert (count_tasks(pool, 40) == 1).all()
    finally:
        leave(cpus)


def test_every_task_runs_once(pool: ctypes.CDLL, threads: int) -> None:
    for n in (0, 1, 2, 3, 10, 1000, 100_000):
        assert (count_tasks(pool, n) == 1).all(), n
    assert (count_tasks(pool, 50, spin=20_000) == 1).all()


def test_more_tasks_than_a_ticket_numbers(pool: ctypes.CDLL) -> None:
    pool.t_set_num_threads(2)
    assert (count_tasks(pool, 5_000_000) == 1).all()


def test_many_small_jobs_in_a_row(pool: ctypes.CDLL, threads: int) -> None:
    for n in (2, 7, 64):
        assert pool.t_many_jobs(I64(5_000), I64(n)) == 0


def test_jobs_after_workers_fell_asleep(pool: ctypes.CDLL, threads: int) -> None:
    for _ in range(50):
        time.sleep(0.002)
        assert (count_tasks(pool, 9) == 1).all()


def test_several_host_threads_at_once(pool: ctypes.CDLL, threads: int) -> None:
    assert pool.t_concurrent_hosts(4, I64(2_000), I64(11)) == 0


@pytest.mark.parametrize(("hosts", "own"), [(1, 3), (2, 1), (2, 2), (3, 2), (2, 4)])
def test_runs_with_threads_of_their_own_go_on_side_by_side(
    pool: ctypes.CDLL, threads: int, hosts: int, own: int
) -> None:
    """Each team is as large as was asked for while the others work, whatever is set for all."""
    assert pool.t_side_by_side(hosts, own, 50) == 0
    assert pool.t_num_threads() == threads


def test_jobs_inside_jobs_run_on_their_thread(pool: ctypes.CDLL, threads: int) -> None:
    assert pool.t_nested(I64(40), I64(10)) == 0


def test_members_of_a_team_may_wait_for_each_other(pool: ctypes.CDLL, threads: int) -> None:
    members = ctypes.c_int()
    for wanted in (1, 2, 3, 64):
        assert pool.t_team_barriers(wanted, 300, ctypes.byref(members)) == 0
        assert members.value == min(wanted, threads)


def test_number_of_threads_may_change_between_jobs(pool: ctypes.CDLL) -> None:
    for n in (1, 4, 2, 8, 1, 3, 0):
        pool.t_set_num_threads(n)
        assert pool.t_many_jobs(I64(200), I64(20)) == 0


def test_number_of_threads_may_change_during_jobs(pool: ctypes.CDLL) -> None:
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for n in (1, 5, 2, 3):
                pool.t_set_num_threads(n)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        assert pool.t_concurrent_hosts(3, I64(3_000), I64(8)) == 0
    finally:
        stop.set()
        changer.join()
        pool.t_set_num_threads(0)


FORK = """
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1])
lib.t_many_jobs.restype = ctypes.c_int64
assert lib.t_side_by_side(1, 2, 1) == 0
run = lambda: lib.t_many_jobs(ctypes.c_int64(500), ctypes.c_int64(8))
lib.t_set_num_threads(3)
assert run() == 0
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        wrong = run()
        threads = len(os.listdir("/proc/self/task"))
        wrong += lib.t_side_by_side(1, 2, 1)
        os._exit(0 if wrong == 0 and threads == 3 else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert run() == 0
"""


@pytest.mark.skipif(
    "thread" in os.environ.get("EDGECOMPILE_SANITIZE", ""),
    reason="ThreadSanitizer takes a child's threads for the parent's, whose addresses they get",
)
def test_a_forked_child_starts_its_own_workers(pool: ctypes.CDLL) -> None:
    subprocess.run([sys.executable, "-c", FORK, pool._name], check=True)


ALONE = """
import ctypes, os, subprocess, sys, time

pool = ctypes.CDLL(sys.argv[1])
here, there = sorted(os.sched_getaffinity(0))[:2]
both, cpus = {here, there}, (ctypes.c_int * 2)()
pool.t_set_num_threads(2)
pool.t_cpus_of_two(cpus)
(worker,) = [int(thread) for thread in os.listdir("/proc/self/task") if int(thread) != os.getpid()]
os.sched_setaffinity(0, {here})
neighbour = subprocess.Popen(["taskset", "-c", str(there), sys.executable, "-c", "while True: pass"])
try:
    apart = 0
    for _ in range(40):
        os.sched_setaffinity(worker, {here})
        os.sched_setaffinity(worker, both)
        time.sleep(0.002)
        pool.t_cpus_of_two(cpus)
        apart += cpus[0] != cpus[1]
finally:
    neighbour.kill()
    neighbour.wait()
assert os.sched_getaffinity(worker) == both
print(apart)
"""


def test_a_worker_leaves_its_callers_cpu(pool: ctypes.CDLL) -> None:
    """Linux may wake both on one CPU, here as the other one is busy; the worker may still run on either."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    command = [sys.executable, "-c", ALONE, pool._name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 20


def processor_seconds() -> float:
    t = os.times()
    return t.user + t.system


def test_idle_workers_sleep(pool: ctypes.CDLL) -> None:
    pool.t_set_num_threads(4)
    assert (count_tasks(pool, 100) == 1).all()
    time.sleep(0.01)
    before = processor_seconds()
    time.sleep(0.3)
    assert processor_seconds() - before < 0.05


CALM = (100_000, 0)  # a gap of 100 µs, in which the worker kept its core


@pytest.mark.parametrize(
    ("gaps", "waits_us"),
    [
        ([], 50),
        ([CALM] * 7, 50),
        ([CALM] * 8, 500),
        ([CALM] * 7 + [(2_000, 0)] * 50, 50),  # gaps within a run tell nothing
        ([CALM] * 7 + [(2_000, 0)] * 50 + [CALM], 500),
        ([CALM] * 20 + [(2_000, 0)] * 50, 500),
        ([CALM] * 20 + [(600_000, 0)], 50),  # nothing followed soon
        ([CALM] * 20 + [(200_000, 150_000)], 50),  # another process had the core
        ([CALM] * 20 + [(2_000, 150_000)], 50),
        ([CALM] * 20 + [(600_000, 0)] + [CALM] * 7, 50),
        ([CALM] * 20 + [(600_000, 0)] + [CALM] * 8, 500),
    ],
)
def test_workers_wait_awake_for_what_follows_soon(
    pool: ctypes.CDLL, gaps: list[tuple[int, int]], waits_us: int
) -> None:
    """The rule alone: how long they really wait depends on who else wants the CPUs."""
    flat = np.array(gaps, np.int64).reshape(-1, 2)
    pool.t_patience.restype = I64
    assert pool.t_patience(ctypes.c_void_p(flat.ctypes.data), I64(len(gaps))) == waits_us * 1000


BUSY = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"


def test_busy_neighbours_cause_no_stalls(pool: ctypes.CDLL) -> None:
    """With every core taken by another process too, most jobs of two 20 µs tasks end within a time slice,
    rather than waiting one of milliseconds each."""
    pool.t_set_num_threads(2)
    neighbours = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in os.sched_getaffinity(0)]
    try:
        time.sleep(0.3)
        seconds = []
        for _ in range(2000):
            start = time.perf_counter()
            count_tasks(pool, 4, spin=10_000)
            seconds.append(time.perf_counter() - start)
    finally:
        for p in neighbours:
            p.kill()
            p.wait()
    assert np.median(seconds) < 0.002


# ---- OpenMP -------------------------------------------------------------------------------------

OPENMP_SOURCES = ("threads/openmp.cpp", *POOL_SOURCES, "base/status.cpp")


@unsanitized_tools()
def build_openmp(toolchain: Toolchain, folder: Path) -> Path:
    """openmp_cases.cpp with GOMP_* and omp_* renamed to ec_*, linked with our sources, no libgomp."""
    flags = [*march_flags(runnable_marches()[-1]), *sanitizer_flags()]
    (cases,) = compile_native(toolchain, [HERE / "openmp_cases.cpp"], [*flags, "-fopenmp"])
    sources = [*(NATIVE / name for name in OPENMP_SOURCES), HERE / "openmp_harness.cpp"]
    others = [built.path for built in compile_native(toolchain, sources, flags)]
    entries = [
        name
        for name in undefined_symbols(toolchain, cases.path)
        if name.startswith(("GOMP_", "omp_"))
    ]
    assert entries, "no OpenMP entry points in the object"
    renamed, target = folder / "cases.o", folder / "libcases.so"
    rename_symbols(toolchain, cases.path, renamed, {name: f"ec_{name}" for name in entries})
    command = [toolchain.cxx, "-shared", "-pthread", *sanitizer_flags(), "-Wl,-z,defs"]
    run_tool([*command, *map(str, [renamed, *others]), "-o", str(target)], "linking the cases")
    needed = subprocess.run(
        ["readelf", "-d", target], capture_output=True, text=True, check=True
    ).stdout
    assert "libgomp" not in needed
    return target


@pytest.fixture(scope="module")
def cases(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return ctypes.CDLL(str(build_openmp(toolchain, tmp_path_factory.mktemp("openmp"))))


CALLS = [
    ("omp_static_loops", (I64(37), I64(19))),
    ("omp_static_loops", (I64(1), I64(1))),
    ("omp_slots", (I64(1000),)),
    ("omp_apart", (I64(100_003),)),
    ("omp_reductions", (I64(1000),)),
    ("omp_reductions", (I64(3),)),
    ("omp_barriers", (200,)),
    ("omp_singles", (300,)),
    ("omp_dynamic_loops", (I64(500),)),
    ("omp_dynamic_loops", (I64(1),)),
    ("omp_dynamic_loops", (I64(0),)),
    ("omp_combined_dynamic", (I64(333),)),
    ("omp_critical_sections", (I64(2000),)),
    ("omp_nested", ()),
    ("omp_outside_regions", ()),
]


@pytest.mark.parametrize("threads_", [1, 2, 3, 6])
@pytest.mark.parametrize(("name", "args"), CALLS)
def test_openmp_constructs(
    cases: ctypes.CDLL, name: str, args: tuple[object, ...], threads_: int
) -> None:
    cases.t_set_num_threads(threads_)
    function = getattr(cases, name)
    function.restype = I64
    for _ in range(5):
        assert function(*args) == 0


def test_openmp_team_sizes(cases: ctypes.CDLL) -> None:
    cases.omp_team_size.restype = I64
    cases.t_set_num_threads(3)
    assert [cases.omp_team_size(n) for n in (0, 1, 2, 3, 50)] == [3, 1, 2, 3, 3]


def test_openmp_from_several_host_threads(cases: ctypes.CDLL) -> None:
    cases.t_set_num_threads(3)
    wrong: list[tuple[str, int]] = []

    def call_all() -> None:
        for name, args in CALLS:
            function = getattr(cases, name)
            for _ in range(3):
                if (n := function(*args)) != 0:
                    wrong.append((name, n))

    hosts = [threading.Thread(target=call_all) for _ in range(3)]
    for t in hosts:
        t.start()
    for t in hosts:
        t.join()
    assert not wrong
