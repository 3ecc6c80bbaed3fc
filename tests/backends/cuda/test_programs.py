"""Host code is compiled beside the generation of kernels: who hears of a failure, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from edgecompile.backends.cuda import programs
from edgecompile.errors import CompileError
from edgecompile.targets.profile import load_target


def test_host_code_that_fails_is_told_before_more_is_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated: list[int] = []

    def refuse() -> Any:
        raise CompileError("the compiler refuses it")

    def compile_each(
        task: Any, rules: Sequence[str], tell: Callable[..., None], linking: ThreadPoolExecutor
    ) -> list[programs._Program]:
        generated.append(task.index)
        future = linking.submit(refuse)
        wait([future])
        return [programs._Program({}, future)]

    monkeypatch.setattr(programs, "_compile_each", compile_each)
    monkeypatch.setattr(programs, "build_gpu_runtime", lambda arch, folder: None)
    monkeypatch.setattr(programs, "find_ptxas", lambda name: tmp_path)
    five: list[Any] = [None] * 5
    with pytest.raises(CompileError, match="refuses it"):
        programs.compile_for_gpu(five, five, load_target("cuda-sm87"), "fp16", tmp_path)
    assert generated == [0]
