"""device: what tells one device from another, on the fake of CUDA and files of a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import GpuUnavailableError
from edgecompile.runtime.gpu.cuda import Cuda
from edgecompile.runtime.gpu.device import (
    describe_device,
    free_memory,
    main_memory,
    tensorrt_version,
)
from tests.fake_gpu.build import MODULES, FakeCudart
from tests.fake_gpu.bundles import DEVICE, MODEL, make_device_root
from tests.needs import need


@pytest.fixture
def orin(
    fake_cudart: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Cuda, Path]:
    """The fake of CUDA and the folder that stands for the root of an Orin Nano."""
    root = make_device_root(tmp_path / "root")
    monkeypatch.setenv("EDGECOMPILE_DEVICE_ROOT", str(root))
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE)
    return Cuda.load(), root


BUILD = """
import ctypes, os, sys, types
from edgecompile.runtime.gpu.device import tensorrt_version
module = types.ModuleType("tensorrt")  # a fake
module.__version__ = sys.argv[2]
sys.modules["tensorrt"] = module
before = tensorrt_version()
ctypes.CDLL(sys.argv[1])
print(before, tensorrt_version())
"""


@pytest.mark.parametrize(
    ("source", "version", "found"),
    [
        ("int getInferLibBuildVersion(void) { return 30; }", "10.3.0", "10.3.0.30"),
        ("int getInferLibBuildVersion(void) { return 30; }", "10.3.0.26", "10.3.0.26"),
        ("int getInferLibBuildVersion(void) { return 30; }", "11.4.0", "11.4.0"),
        ("int getInferLibVersion(void) { return 8502; }", "10.3.0", "10.3.0"),
    ],
)
def test_the_build_of_the_loaded_library(
    tmp_path: Path, source: str, version: str, found: str
) -> None:
    """In a process of its own: a fake library of TensorRT would stay in this one."""
    (tmp_path / "fake.c").write_text(source)
    library = tmp_path / "fake_libnvinfer.so"
    soname = "-Wl,-soname,libnvinfer.so.10"
    command = [need("cc", "gcc"), "-shared", "-fPIC", soname, "-o", str(library)]
    subprocess.run([*command, str(tmp_path / "fake.c")], check=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(library), version],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [version, found], done.stderr


def test_a_jetson(orin: tuple[Cuda, Path]) -> None:
    identity = describe_device(orin[0], "10.3.0")
    assert identity.to_json() == {
        "model": MODEL,
        "l4t": "36.4.3",
        "name": "Orin",
        "compute_capability": "8.7",
        "sm_count": 8,
        "integrated": True,
        "driver": "12.6",
        "runtime": "12.6",
        "tensorrt": "10.3.0",
        "memory_bytes": 8 << 30,
    }
    assert identity.jetpack == "6"
    assert "memory_bytes" not in identity.key_json()
    assert MODEL in str(identity) and "L4T 36.4.3" in str(identity)


@pytest.mark.parametrize(
    ("release", "l4t", "jetpack"),
    [
        ("# R35 (release), REVISION: 5.0, GCID: 1", "35.5.0", "5"),
        ("# R38 (release), REVISION: 2.1, GCID: 1", "38.2.1", "7"),
        ("# R99 (release), REVISION: 1.0, GCID: 1", "99.1.0", ""),
        ("# R36 (release), REVISION: \x1b[2J", "", ""),
        ("", "", ""),
        ("\xff" * 100_000, "", ""),
    ],
)
def test_releases(orin: tuple[Cuda, Path], release: str, l4t: str, jetpack: str) -> None:
    (orin[1] / "etc" / "nv_tegra_release").write_text(release, encoding="latin-1")
    identity = describe_device(orin[0], "10.3.0")
    assert (identity.l4t, identity.jetpack) == (l4t, jetpack)


def test_a_machine_that_is_no_jetson(orin: tuple[Cuda, Path]) -> None:
    (orin[1] / "etc" / "nv_tegra_release").unlink()
    (orin[1] / "proc" / "device-tree" / "model").unlink()
    identity = describe_device(orin[0], "10.3.0")
    assert (identity.model, identity.l4t, identity.jetpack) == ("", "", "")
    assert str(identity).startswith("Orin (compute capability 8.7")


def test_control_characters_of_a_device_tree(orin: tuple[Cuda, Path]) -> None:
    (orin[1] / "proc" / "device-tree" / "model").write_bytes(b"Jetson\x1b[2J\n Orin\0")
    assert describe_device(orin[0], "1").model == "Jetson[2J Orin"


@pytest.mark.slow
def test_free_memory_counts_the_page_cache_where_it_is_shared(orin: tuple[Cuda, Path]) -> None:
    cuda, root = orin
    block = cuda.malloc(4 << 30)
    assert free_memory(cuda, integrated=False) == 4 << 30
    assert free_memory(cuda, integrated=True) == 6_000_000 * 1024
    (root / "proc" / "meminfo").write_text("MemAvailable:    1000 kB\n")
    assert free_memory(cuda, integrated=True) == 4 << 30
    (root / "proc" / "meminfo").unlink()
    assert free_memory(cuda, integrated=True) == 4 << 30
    cuda.free(block)


def test_main_memory_is_what_the_kernel_and_the_container_leave(orin: tuple[Cuda, Path]) -> None:
    root = orin[1]
    assert main_memory() == 6_000_000 * 1024
    limit = root / "sys" / "fs" / "cgroup" / "memory.max"
    limit.parent.mkdir(parents=True)
    for text, bytes_left in {
        "max\n": 6_000_000 * 1024,
        "1000000\n": 1_000_000,
        str(1 << 60): 6_000_000 * 1024,
    }.items():
        limit.write_text(text)
        assert main_memory() == bytes_left
    # What the container has taken already, but for files that it has read and doesn't read again.
    limit.write_text("1000000\n")
    limit.with_name("memory.current").write_text("700000\n")
    assert main_memory() == 300_000
    limit.with_name("memory.stat").write_text("active_file 90000\ninactive_file 50000\n")
    assert main_memory() == 350_000
    limit.with_name("memory.current").write_text("1100000\n")
    assert main_memory() == 0
    (root / "proc" / "meminfo").unlink()
    assert main_memory() is None


def test_without_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(GpuUnavailableError, match="module tensorrt can't be used") as caught:
        tensorrt_version()
    assert "apt install python3-libnvinfer" in (caught.value.hint or "")


def test_a_tensorrt_whose_libraries_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "raise ImportError('libnvinfer.so.10: cannot open shared object file')\n"
    (tmp_path / "tensorrt.py").write_text(text)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(GpuUnavailableError, match=r"libnvinfer\.so\.10: cannot open"):
        tensorrt_version()


def test_the_version_of_the_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.syspath_prepend(str(MODULES))
    try:
        assert tensorrt_version() == "10.3.0"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt"]:
            del sys.modules[name]
