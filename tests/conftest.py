"""Fixtures that take long to make and are therefore made once for all tests, and the tiers of tests."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fake_gpu.build import MODULES, FakeCudart, build_fake_cudart
from tests.needs import in_ci, lack, need, need_aarch64_compiler, need_variable, provide

if TYPE_CHECKING:
    from tests.fake_gpu.triton_bundle import TritonBundle

FACTORIES = Path(__file__).parent / "factories"
DIED = pytest.StashKey[bool]()
#: Files whose few tests take minutes. The last of them would keep one process busy when the others have ended.
LONG = frozenset(
    {
        *("test_speech.py", "test_voice.py", "test_lookup_bundles.py", "test_triton_build.py"),
        *("test_quality.py", "test_mixture.py", "test_reproducible.py", "test_emulated.py"),
        *("test_baselines.py", "test_generation_build.py", "test_pipeline.py", "test_detectors.py"),
        *("test_build_families.py", "test_earlier_formats.py", "test_policy_build.py"),
        *("test_tutorial.py", "test_wheels.py", "test_cluster.py", "test_ray.py"),
    }
)

try:
    from tests.draws import register_profiles
except ImportError:
    pass  # an emulated Python has no hypothesis, and runs no test that draws
else:
    register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-variants",
        action="store_true",
        help="run native tests for every variant that this CPU can run, not for its best one alone",
    )


def pytest_configure() -> None:
    """A run in the background ignores some signals, and would hand that on to each process that a test interrupts.

    A handler isn't handed on.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of xdist that dies takes tests with it that nobody runs: the run has failed, whatever passes later."""
    if error:
        node.config.stash[DIED] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    if DIED in session.config.stash:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A process of xdist begins with long files, and goes on with those of many tests."""
    if hasattr(config, "workerinput"):
        counts = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path.name not in LONG, -counts[item.path]))


def pytest_collection_finish() -> None:
    """What is imported by now stays: garbage is no longer looked for among its millions of objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def aarch64_compiler() -> str:
    """The cross compiler for aarch64, with its binutils."""
    return need_aarch64_compiler()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test's draws with torch don't depend on the tests that ran before it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """A lock among the processes of a parallel test run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built_once(folder: Path, name: str, make: Callable[[Path, Path], object]) -> Path:
    """The bundle ``NAME.ecb`` of a test run: the first process that asks for it makes it.

    Args:
        folder: the run's shared folder.
        name: the bundle's name.
        make: a function that builds it, from its path and that of a work folder.
    """
    output = folder / f"{name}.ecb"
    with one_at_a_time(folder / f"{name}.lock"):
        if not output.exists():
            make(output, folder / f"{name}.work")
    return output


def family_once(
    folder: Path, name: str, family: str, load: Mapping[str, Any] | None = None, **how: Any
) -> Path:
    """A generative bundle of a family of the zoo, as :func:`built_once` has it.

    Args:
        folder: the run's shared folder.
        name: the bundle's name.
        family: the family's name.
        load: options of loading the model.
        how: further arguments of ``build_family``.
    """
    pytest.importorskip("transformers")
    from tests.zoo.generation_bundles import build_family
    from tests.zoo.generation_families import load_family

    return built_once(
        folder,
        name,
        lambda output, work: build_family(load_family(family, **(load or {})), output, work, **how),
    )


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all the processes of this test run see."""
    base = tmp_path_factory.getbasetemp()
    # Under xdist each worker has a folder of its own below the run's.
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def device_python() -> str:
    """An interpreter with numpy and without torch: a device's, as far as Python goes."""
    name = "EDGECOMPILE_DEVICE_PYTHON"
    return os.environ.get(name) or provide(name) or sys.executable


@pytest.fixture(scope="session")
def arm64_python() -> str:
    """An emulated interpreter with numpy, as scripts/pythons/arm64 makes it."""
    need("qemu-aarch64", "qemu-user")
    wrapper = need_variable("EDGECOMPILE_ARM64_PYTHON")
    assert Path(wrapper).is_file(), f"EDGECOMPILE_ARM64_PYTHON={wrapper} doesn't exist"
    return wrapper


@pytest.fixture(scope="session")
def tiny_model(shared_folder: Path) -> Path:
    """A two-layer BERT with random weights and a tokenizer, in Hugging Face layout."""
    pytest.importorskip("transformers")
    from tests.factories.folders import write_model, write_tokenizer

    folder = shared_folder / "tiny-model"
    with one_at_a_time(shared_folder / "tiny-model.lock"):
        if not (folder / "tokenizer.json").is_file():
            write_model(folder)
            write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bundle(shared_folder: Path, tiny_model: Path) -> Path:
    """The tiny model built for both variants of cpu-x86-64, in three exact buckets, batch 1 or 2."""
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.models.options import LoadOptions
    from edgecompile.pipeline.build import build
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.planning.request import PlanRequest
    from tests.plans import exact_plan

    lengths = LengthDistribution.from_samples([3, 4, 4, 7, 9, 9, 9, 20, 31])
    return built_once(
        shared_folder,
        "tiny",
        lambda output, work: build(
            BuildRequest(
                model=str(tiny_model),
                target="cpu-x86-64",
                plan=PlanRequest(lengths, plan=exact_plan(9, 20, 32, batch=2), max_length=32),
                output=output,
                load=LoadOptions(batch=(1, 2)),
                work_dir=work,
            )
        ),
    )


@pytest.fixture(scope="session")
def rows_bundle(shared_folder: Path) -> Path:
    """tests/factories/rows.py for up to 8 rows of up to 512 tokens."""
    import edgecompile

    return built_once(
        shared_folder,
        "rows",
        lambda output, work: edgecompile.build(
            f"{FACTORIES / 'rows.py'}:make",
            lengths=[4, 9, 512],
            batch=(1, 8),
            quick=True,
            output=output,
            work_dir=work,
        ),
    )


@pytest.fixture(scope="session")
def stateful_bundle(shared_folder: Path) -> Path:
    """tests/factories/stateful.py in two buckets, for chunks of 1 to 24 frames."""
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.pipeline.build import build
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.planning.request import PlanRequest
    from tests.plans import exact_plan

    lengths = LengthDistribution.from_samples([3, 8, 24])
    return built_once(
        shared_folder,
        "stateful",
        lambda output, work: build(
            BuildRequest(
                model=f"{FACTORIES / 'stateful.py'}:make",
                target="cpu-x86-64-v3",
                plan=PlanRequest(lengths, plan=exact_plan(7, 24)),
                output=output,
                work_dir=work,
            )
        ),
    )


@pytest.fixture(scope="session")
def decoder_bundle(shared_folder: Path) -> Path:
    """A small decoder with rotary positions and grouped heads as a generative bundle."""
    from tests.generative import build_decoder

    return built_once(shared_folder, "decoder", build_decoder)


@pytest.fixture(scope="session")
def lookup_bundle(shared_folder: Path) -> Path:
    """A family with rotary positions and grouped heads, with runs that give several rows of logits."""
    return family_once(shared_folder, "lookup", "llama", {"lookup": 8})


@pytest.fixture(scope="session")
def bytewise_bundle(shared_folder: Path, decoder_bundle: Path) -> Path:
    """The decoder with a tokenizer whose tokens are bytes, and a chat template that takes tools."""
    pytest.importorskip("tokenizers")
    from tests.bytewise import build_bytewise

    return built_once(
        shared_folder, "bytewise", lambda output, _: build_bytewise(decoder_bundle, output)
    )


@pytest.fixture(scope="session")
def hybrid_bundle(shared_folder: Path) -> Path:
    """A generative bundle of a family with states of a fixed size beside keys and values."""
    return family_once(shared_folder, "hybrid", "qwen3_5", padded=True)


@pytest.fixture(scope="session")
def halves_bundle(shared_folder: Path) -> Path:
    """One of another such family, with keys and values in bfloat16."""
    return family_once(shared_folder, "halves", "lfm2", {"cache_precision": "bf16"})


@pytest.fixture(scope="session")
def scaled_bundle(shared_folder: Path) -> Path:
    """The same with keys and values in int8."""
    return family_once(shared_folder, "scaled", "lfm2", {"cache_precision": "int8"})


@pytest.fixture(scope="session")
def together_bundle(shared_folder: Path) -> Path:
    """A generative bundle of a family with a program that gives up to four texts a token each."""
    return family_once(shared_folder, "together", "llama", texts=4)


@pytest.fixture(scope="session")
def halves_together(shared_folder: Path) -> Path:
    """The same of a family with windows in one layer, caches in bfloat16, and runs of several tokens of one text."""
    load = {"cache_precision": "bf16", "lookup": 4}
    return family_once(shared_folder, "halves-together", "gemma3", load, texts=4)


@pytest.fixture(scope="session")
def scaled_together(shared_folder: Path) -> Path:
    """The same of another such family, with caches in int8."""
    load = {"cache_precision": "int8", "lookup": 4}
    return family_once(shared_folder, "scaled-together", "gemma2", load, texts=4)


@pytest.fixture(scope="session")
def states_together(shared_folder: Path) -> Path:
    """The same of a family with states of a fixed size and windows, and with runs of several tokens of one text."""
    return family_once(shared_folder, "states-together", "lfm3", {"lookup": 4}, texts=4)


@pytest.fixture(scope="session")
def fake_cudart_path(shared_folder: Path) -> Path:
    """A fake of libcudart, which is no GPU; see tests/fake_gpu/fake_cudart.c."""
    with one_at_a_time(shared_folder / "fake-cudart.lock"):
        path = shared_folder / "libfake_cudart.so"
        return path if path.is_file() else build_fake_cudart(shared_folder)


@pytest.fixture
def fake_cudart(fake_cudart_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudart]:
    """That fake as EDGECOMPILE_CUDART, as if the process had just begun."""
    monkeypatch.setenv("EDGECOMPILE_CUDART", str(fake_cudart_path))
    for name in ("FAKE_CUDART_FAIL", "FAKE_CUDART_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeCudart(fake_cudart_path)
    fake.reset()
    yield fake
    fake.reset()


@pytest.fixture(scope="session")
def fake_driver_path(shared_folder: Path) -> Path:
    """A fake of libcuda, which is no GPU; see tests/fake_gpu/fake_cuda.c."""
    from tests.fake_gpu.triton_bundle import build_fake_driver

    with one_at_a_time(shared_folder / "fake-cuda.lock"):
        path = shared_folder / "libfake_cuda.so"
        return path if path.is_file() else build_fake_driver(shared_folder)


@pytest.fixture
def fake_driver(fake_driver_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudart]:
    """That fake as EDGECOMPILE_CUDA_DRIVER; the test may leave nothing on it and misuse nothing."""
    from tests.fake_gpu.triton_bundle import DEVICE

    monkeypatch.setenv("EDGECOMPILE_CUDA_DRIVER", str(fake_driver_path))
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE)
    for name in ("FAKE_CUDART_FAIL", "EDGECOMPILE_MODE", "EDGECOMPILE_FALLBACK"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeCudart(fake_driver_path)
    fake.reset()
    yield fake
    live, misuses = fake.live, fake.misuses
    fake.reset()
    assert (live, misuses) == (0, 0)


@pytest.fixture
def triton_bundle(tmp_path: Path) -> TritonBundle:
    """A bundle for that GPU; nothing is written before ``write()``."""
    from tests.fake_gpu.triton_bundle import TritonBundle

    return TritonBundle(tmp_path / "tiny.ecb")


@pytest.fixture
def fake_device(
    fake_cudart: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeCudart]:
    """The environment of a Jetson made of fakes, with an empty cache; nothing may leak."""
    pytest.importorskip("onnxruntime")
    from tests.fake_gpu.bundles import DEVICE, make_device_root

    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE)
    monkeypatch.setenv("EDGECOMPILE_DEVICE_ROOT", str(make_device_root(tmp_path / "root")))
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(MODULES), str(FACTORIES.parents[1])]))
    monkeypatch.syspath_prepend(str(MODULES))
    for name in [*os.environ]:
        if name.startswith("FAKE_TRT_") or name in ("EDGECOMPILE_MODE", "EDGECOMPILE_FALLBACK"):
            monkeypatch.delenv(name)
    yield fake_cudart
    for name in [*sys.modules]:
        if name.partition(".")[0] == "tensorrt":
            del sys.modules[name]
    assert fake_cudart.live == 0 and fake_cudart.misuses == 0


@pytest.fixture(scope="session")
def jetson_bundle(shared_folder: Path, tiny_model: Path) -> Path:
    """The tiny model built for jetson-orin-nano in fp16, in two padded buckets and an exact one."""
    pytest.importorskip("onnxruntime")
    need_aarch64_compiler()
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.pipeline.build import build
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.planning.request import PlanRequest

    output = shared_folder / "jetson.ecb"
    with one_at_a_time(shared_folder / "jetson.lock"):
        if not output.exists():
            lengths = LengthDistribution.from_samples([3, 4, 4, 7, 9, 9, 9, 20, 31])
            build(
                BuildRequest(
                    model=str(tiny_model),
                    target="jetson-orin-nano",
                    plan=PlanRequest(lengths, buckets=3, max_length=32),
                    output=output,
                    work_dir=shared_folder / "jetson.work",
                )
            )
    return output


@pytest.fixture(scope="session")
def rtx_python() -> str:
    """An interpreter that has TensorRT-RTX: this one, or the one that the environment names."""
    python = os.environ.get("EDGECOMPILE_RTX_PYTHON", sys.executable)

    def has_rtx() -> bool:
        command = [python, "-c", "import tensorrt_rtx_bindings"]
        return subprocess.run(command, capture_output=True).returncode == 0

    # Only CI installs it: 100 MB, under a licence of its own.
    if not has_rtx() and not (in_ci() and provide("rtx") and has_rtx()):
        lack("TensorRT-RTX isn't installed (scripts/environment rtx)")
    return python
