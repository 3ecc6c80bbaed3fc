"""The native tests again, built for aarch64 and run under qemu-aarch64, pytest and all.

Emulation proves instructions and results, never speed: tests of time are left out.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from pathlib import Path

import pytest

from tests.emulated import leave_no_core, run_emulated
from tests.native.sweep import EMULATED
from tests.needs import need

pytestmark = [
    pytest.mark.slow,
    pytest.mark.emulated,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the other tests run natively"),
]
ROOT = Path(__file__).resolve().parents[2]

#: Of products whose blocks have another form than usual, what is left out.
FEW_FORMS = "(not (halves or minimums or int4 and (whole or zeros)) or every_activation or forms)"

#: pytest's -k for each file: all seeds and sizes would take a quarter of an hour. A process with
#: several threads that forks aborts inside qemu-user itself.
SELECTED = {
    "kernels/test_simd.py": "",
    "kernels/test_gemm.py": "not strided_batches or armv8-a-0",
    "kernels/test_gemm_packed.py": f"(not (random_shapes or every_number_of_rows or long_rows) or armv8-a-0 or 2065 or (every_number_of_rows and fp32)) and {FEW_FORMS}",
    "kernels/test_gemm_rounded.py": FEW_FORMS,
    "kernels/test_convolution_kernels.py": "",
    # Nothing here multiplies pairs of bfloat16: masks with and without permission, not each with both.
    "kernels/test_attention.py": "not (long_sequences and (512 or 1100)) and (not (random_shapes or longer_cache or may_be_rounded) or armv8-a-0) and not (row_for_each_query and (False-False or True-True))",
    "kernels/test_vecmath.py": "not two_ulp or exp or tanh or erf or log or sin or pow",
    "test_threads.py": "not forked_child and not idle_workers and not busy_neighbours and not callers_cpu",
}  # fmt: skip

#: What a variant multiplies otherwise, on a CPU that has its instructions.
OTHER_PRODUCTS = f"(({{kinds}}) and not (random_shapes or every_number_of_rows or long_rows) or ({{kinds}}) and ({{variant}}-0 or 2065) or half_precision or forms) and {FEW_FORMS}"


@pytest.fixture(scope="module")
def cross_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for $PATH in which g++, objcopy and so on are the cross tools."""
    folder = tmp_path_factory.mktemp("cross-tools")
    for tool in ("g++", "gcc", "objcopy", "objdump", "nm", "readelf"):
        path = need(f"aarch64-linux-gnu-{tool}", "g++-aarch64-linux-gnu")
        (folder / tool).symlink_to(path)
    return folder


@pytest.mark.parametrize("file", list(SELECTED))
def test_native_tests_pass_on_aarch64(file: str, arm64_python: str, cross_tools: Path) -> None:
    run_tests(file, SELECTED[file], "cortex-a53", arm64_python, cross_tools)


@pytest.mark.parametrize(
    ("variant", "cpu", "kinds"),
    [
        ("aarch64-dotprod", "cortex-a76", "int8 or int4"),
        ("aarch64-i8mm", "max", "int8 or int4 or bf16"),
    ],
)
def test_other_products_pass_on_aarch64(
    variant: str, cpu: str, kinds: str, arm64_python: str, cross_tools: Path
) -> None:
    select = OTHER_PRODUCTS.format(variant=variant, kinds=kinds)
    for file in ("kernels/test_gemm_packed.py", "kernels/test_gemm_rounded.py"):
        run_tests(file, select, cpu, arm64_python, cross_tools, variant)


def test_products_of_matrices_are_those_of_dot_products(
    arm64_python: str, cross_tools: Path
) -> None:
    """On a CPU without the instruction the first ones die, so it is what gives the results."""
    file, variant = "kernels/test_rounded_variants.py", "aarch64-i8mm"
    run_tests(file, "matrices", "max", arm64_python, cross_tools, variant)
    done = emulate_tests(file, "matrices", "cortex-a76", arm64_python, cross_tools, variant)
    assert done.returncode == -signal.SIGILL, done.stdout


def run_tests(
    file: str, select: str, cpu: str, python: str, cross_tools: Path, march: str = ""
) -> None:
    done = emulate_tests(file, select, cpu, python, cross_tools, march)
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def emulate_tests(
    file: str, select: str, cpu: str, python: str, cross_tools: Path, march: str
) -> subprocess.CompletedProcess[str]:
    """pytest itself is emulated; the compilers that it calls are not."""
    environment = {
        **os.environ,
        "PATH": f"{cross_tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(python).parent / "tools"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "QEMU_CPU": cpu,
        "EDGECOMPILE_TEST_MARCHES": march,
        EMULATED: "1",
    }
    environment.pop("EDGECOMPILE_CXX", None)
    for name in [x for x in environment if x.startswith(("PYTEST_XDIST", "PYTEST_CURRENT"))]:
        del environment[name]
    chosen = ["-k", select] if select else []
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [*chosen, f"tests/native/{file}"]
    return run_emulated(command, cwd=ROOT, env=environment, preexec_fn=leave_no_core)
