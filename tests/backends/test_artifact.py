from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from edgecompile.backends.artifact import TensorStore


def test_programs_compiled_side_by_side_may_bring_the_same_tensor(tmp_path: Path) -> None:
    for attempt in range(20):
        store = TensorStore(tmp_path / str(attempt))
        tensor = torch.full((256, 257), float(attempt))
        with ThreadPoolExecutor(8) as pool:
            stored = set(pool.map(store.add, [tensor] * 8))
        assert len(stored) == 1
        path = store.path(stored.pop())
        assert path.read_bytes() == tensor.numpy().tobytes()
        assert [item.name for item in path.parent.iterdir()] == [path.name]
