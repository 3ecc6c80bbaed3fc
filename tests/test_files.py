"""Values as JSON has them, and files that are whole or not there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgecompile.files import plain, plain_fields, write_json


@dataclass(frozen=True)
class Inner:
    value: float

    def to_json(self) -> str:
        return f"inner {self.value}"


@dataclass(frozen=True)
class Outer:
    path: Path
    pairs: tuple[tuple[str, int], ...]
    inner: Inner
    error: float = float("nan")

    def to_json(self) -> object:
        return {"ok": True, **plain_fields(self)}


def test_dataclasses_are_their_fields() -> None:
    outer = Outer(Path("/somewhere/model.onnx"), (("a", 1),), Inner(0.5))
    assert plain({1: [outer]}) == {
        "1": [
            {
                "ok": True,
                "path": "model.onnx",
                "pairs": [["a", 1]],
                "inner": "inner 0.5",
                "error": None,
            }
        ]
    }


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["record.json"]
