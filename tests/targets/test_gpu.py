"""Facts of GPUs that shape Triton's code, from profiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgecompile.errors import TargetError
from edgecompile.targets.gpu import GpuFacts, GpuSpec
from edgecompile.targets.profile import list_targets, load_target

CUDA = [name for name in list_targets() if load_target(name).kind == "cuda"]


def spec(name: str) -> GpuSpec:
    gpu = load_target(name).gpu
    assert gpu is not None
    return gpu


def test_profiles_of_cuda_have_facts() -> None:
    assert CUDA == ["cuda-any", "cuda-sm80", "cuda-sm87", "cuda-sm89", "cuda-sm90"]
    for name in CUDA:
        assert spec(name).facts.multiprocessors == spec(name).sm_count
    assert spec("cuda-sm90").facts == GpuFacts(90, 132, 227 << 10, 2048, 50 << 20)
    assert spec("jetson-orin-nano").facts.compute_capability == 87


def test_several_architectures_have_the_least_of_each_limit() -> None:
    facts = spec("cuda-any").facts
    assert (facts.compute_capability, facts.shared_memory, facts.threads) == (80, 99 << 10, 1536)


@pytest.mark.parametrize("old", ["7.2", "7.5"])
def test_older_tensor_cores_are_answered_in_words(old: str) -> None:
    gpu = replace(spec("cuda-sm80"), compute_capability=old)
    with pytest.raises(TargetError, match=rf"{old}.*needs 8\.0 or later") as caught:
        _ = gpu.facts
    assert "TensorRT" in (caught.value.hint or "")


def test_unknown_ones_name_those_that_are_known() -> None:
    with pytest.raises(TargetError, match=r"nothing is known.*12\.0") as caught:
        _ = replace(spec("cuda-sm80"), cubins=("8.0", "12.0")).facts
    assert "9.0" in (caught.value.hint or "")


def test_the_table_of_a_profile_comes_back() -> None:
    for name in CUDA:
        assert GpuSpec.from_table(spec(name).to_json()) == spec(name)
