"""What the build of a language model will take, told before it begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from torch import Tensor

from edgecompile.errors import EdgecompileError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.options import LoadOptions
from edgecompile.models.samples import SampleTexts
from edgecompile.pipeline import preflight
from edgecompile.pipeline.forecast import Rates, forecast_build, measure_rates
from edgecompile.pipeline.language_work import LanguageWork, find_work
from edgecompile.pipeline.preflight import begin_build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.run import Run
from edgecompile.planning.request import PlanRequest
from edgecompile.progress import NullProgress, StepHandle
from edgecompile.targets.profile import load_target
from tests.factories.packed_folders import pack_awq, pack_compressed, pack_folder, pack_gptq
from tests.quantization.test_quality import save_llama, write_texts

TARGET = "cpu-x86-64-v3"
RATES = Rates(4e10, 2e10, 0.02)
LAYER = [(4096, 2560), (1024, 2560), (1024, 2560), (2560, 4096), (9728, 2560), (9728, 2560), (2560, 9728)]  # fmt: skip
#: A model of 4 billion weights.
LARGE = LanguageWork([(151936, 2560), *36 * LAYER], "int4", 4800, 2400, 512, (2, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forecast") / "model"
    save_llama(path)
    write_texts(path / "texts.txt", 40)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def request_of(folder: Path, load: LoadOptions | None = None, **plan: Any) -> BuildRequest:
    texts = SampleTexts(folder / "texts.txt", folder / "tokenizer.json")
    lengths = LengthDistribution.from_samples([4, 9])
    return BuildRequest(
        model=str(folder),
        target=TARGET,
        plan=PlanRequest(lengths=lengths, texts=texts, **plan),
        load=load or LoadOptions(max_context=48),
        output=folder.parent / "made.ecb",
    )


def work_of(request: BuildRequest) -> LanguageWork | None:
    return find_work(request, load_target(request.target))


def test_work_follows_from_the_files_and_the_request(folder: Path) -> None:
    work = work_of(request_of(folder, precision="int8", quick=True))
    assert work is not None and work.precision == "int8" and work.programs == (2, 2)
    assert sorted(work.shapes) == sorted(
        [(64, 64)] * 2 + 2 * ([(64, 64)] * 2 + [(32, 64)] * 2 + [(96, 64)] * 2 + [(64, 96)])
    )
    assert work.numbers == sum(n * k for n, k in work.shapes)
    # 41 lines, of which 13 judge.
    assert work.calibrating > work.judging > 100 and work.longest == 48
    wide = work_of(request_of(folder, max_length=16, max_buckets=3))
    assert wide is not None and (wide.calibrating, wide.judging) == (0, 0)
    assert wide.longest == 16 and wide.programs == (2, 3)


@pytest.mark.parametrize("task", ["logits", "feature-extraction"])
def test_other_models_have_none(folder: Path, task: str) -> None:
    assert work_of(request_of(folder, LoadOptions(task=task))) is None
    assert work_of(replace(request_of(folder), model=object())) is None
    assert find_work(request_of(folder), load_target("cuda-any")) is None


@pytest.mark.parametrize(
    ("method", "pack"),
    [("gptq", pack_gptq), ("awq", pack_awq), ("compressed-tensors", pack_compressed)],
)
def test_packed_weights_count_as_the_numbers_that_they_are(
    folder: Path, tmp_path: Path, method: str, pack: Callable[[Tensor, int], dict[str, Tensor]]
) -> None:
    plain = work_of(request_of(folder))
    save_llama(tmp_path / "model")
    pack_folder(tmp_path / "model", method, lambda weight: pack(weight, 32))
    write_texts(tmp_path / "model" / "texts.txt", 40)
    packed = work_of(request_of(tmp_path / "model"))
    assert plain is not None and packed is not None
    assert sorted(packed.shapes) == sorted(plain.shapes)
    assert packed.precision == "checkpoint" and packed.calibrating == 0 < packed.judging


def test_more_work_takes_longer() -> None:
    base = forecast_build(LARGE, RATES).seconds
    assert base[0] < base[1]
    for change in (
        {"calibrating": 9600},
        {"judging": 9600},
        {"longest": 1024},
        {"programs": (4, 4)},
        {"shapes": [*LARGE.shapes, *LAYER]},
    ):
        longer = forecast_build(replace(LARGE, **change), RATES).seconds  # type: ignore[arg-type]
        assert longer[0] > base[0] and longer[1] > base[1], change
    faster = forecast_build(LARGE, Rates(8e10, 4e10, 0.01)).seconds
    assert faster[0] < 0.6 * base[0]
    assert forecast_build(replace(LARGE, precision="fp32", calibrating=0), RATES).seconds < base


def test_a_model_of_4_billion_weights_fits_into_24_gb() -> None:
    forecast = forecast_build(LARGE, RATES)
    assert 3.9e9 < LARGE.numbers < 4.1e9
    assert forecast.memory_bytes < 0.6 * 4 * LARGE.numbers < 24e9
    assert forecast.file_bytes == 2 * 4 * LARGE.numbers
    assert not forecast.shortage(24 * 10**9, 40 * 10**9)
    assert "temporary files" in forecast.describe()
    small = forecast_build(replace(LARGE, shapes=LAYER), RATES)
    assert small.file_bytes == 0 and "temporary files" not in small.describe()


def test_a_shortage_names_both_numbers() -> None:
    forecast = forecast_build(LARGE, RATES)
    assert forecast.shortage(None, 40 * 10**9) == ""
    said = forecast.shortage(4 * 10**9, 40 * 10**9)
    assert said.startswith("the build needs ") and said.endswith("4.00 GB are free")
    said = forecast.shortage(24 * 10**9, 10**9)
    assert "temporary files need 32.2 GB, 1.00 GB are free" in said
    assert "of memory, 24.0 GB are free" in said


def test_earlier_builds_correct_the_next_forecast(cache: Path) -> None:
    first = forecast_build(LARGE, RATES)
    middle = (first.seconds[0] * first.seconds[1]) ** 0.5
    for _ in range(9):
        first.record(3 * middle)
    second = forecast_build(LARGE, RATES)
    assert second.seconds[0] < 3 * middle < second.seconds[1]
    assert second.seconds[1] / second.seconds[0] < first.seconds[1] / first.seconds[0]
    assert "7 earlier builds" in second.basis
    # Other precisions have records of their own.
    assert forecast_build(replace(LARGE, precision="int8"), RATES).basis == first.basis
    (file,) = cache.glob("*.json")
    for damage in ("", "[1]", '{"int4": ["x"]}', '{"int4": 3}', '{"int4": [-1, 0]}'):
        file.write_text(damage)
        assert forecast_build(LARGE, RATES) == first, damage


def test_a_cache_that_cant_be_written_keeps_nothing(cache: Path) -> None:
    cache.write_text("a file in the folder's place")
    first = forecast_build(LARGE, RATES)
    first.record(100.0)
    assert forecast_build(LARGE, RATES) == first


def test_rates_are_measured() -> None:
    rates = measure_rates()
    assert rates.narrow > 1e8 and rates.wide > 1e8 and 0 < rates.loop < 60


class Notes(NullProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    @contextmanager
    def step(self, title: str) -> Iterator[StepHandle]:
        with super().step(title) as step:
            yield _Kept(step, self.said)


class _Kept:
    def __init__(self, step: StepHandle, said: list[str]) -> None:
        self.update, self._said = step.update, said

    def note(self, text: str) -> None:
        self._said.append(text)


def test_the_first_stage_says_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "main_memory", lambda: 1000)
    progress = Notes()
    run = Run(request_of(folder, precision="int8", quick=True), load_target(TARGET), progress)
    with begin_build(run):
        assert run.forecast is not None
        assert any(note.startswith("building takes about ") for note in progress.said)
        assert any("warning: the build needs " in note for note in progress.said)
        assert any("1.00 kB are free" in note for note in run.notes)
        document = json.loads(json.dumps(run.forecast.to_json()))
        assert set(document) == {"seconds", "basis", "memory_bytes", "file_bytes"}
        low, high = document["seconds"]
        assert 0 < low < high


def test_a_stage_that_fails_or_runs_again_counts_with_all_its_time(folder: Path) -> None:
    run = Run(request_of(folder), load_target(TARGET), Notes())

    def fail(step: StepHandle) -> None:
        raise EdgecompileError("it fails")

    with pytest.raises(EdgecompileError):
        run.stage("pack", fail)
    first = run.seconds["pack"]
    assert run.stage("pack", lambda step: 7) == 7
    assert run.seconds["pack"] > first > 0


def test_a_damaged_folder_is_refused_before(folder: Path, tmp_path: Path) -> None:
    request = replace(request_of(folder), model=str(tmp_path / "none"))
    run = Run(request, load_target(TARGET), Notes())
    with pytest.raises(EdgecompileError), begin_build(run):
        pass
    assert run.forecast is None
