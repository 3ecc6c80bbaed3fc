"""Lines of code: which of them are a model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import edgecompile
from edgecompile.models.source_lines import is_user_code

TORCH, OWN = Path(torch.__file__).parent, Path(edgecompile.__file__).parent


@pytest.mark.parametrize(
    ("file", "is_users"),
    [
        (TORCH / "nn/functional.py", False),
        (TORCH.parent / "torchvision/models/resnet.py", True),
        (TORCH.parent / "numpy/_core/numeric.py", False),
        (TORCH.parent / "click/core.py", False),
        (TORCH.parent / "numpy_model/forward.py", True),
        (OWN / "loaders/load.py", False),
        (OWN.parent / "edgecompile_models/forward.py", True),
        (Path(json.__file__), False),
        (Path("/home/me/my-packages/forward.py"), True),
    ],
    ids=lambda value: value.parent.name if isinstance(value, Path) else "",
)
def test_a_models_code_is_told_from_torchs_pythons_and_ours(file: Path, is_users: bool) -> None:
    assert is_user_code(str(file)) is is_users
