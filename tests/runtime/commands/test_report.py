"""report: a device's table and file, with onnxruntime and openvino beside the bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.commands.report import KIND, format_report, make_report
from edgecompile.runtime.measure.peers import find_peers


@pytest.fixture(scope="module")
def onnx_file(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model as torch's own exporter writes it."""
    pytest.importorskip("onnxscript")
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(tiny_model, attn_implementation="eager").eval()
    path = tmp_path_factory.mktemp("onnx") / "tiny.onnx"
    example = {
        name: torch.ones(2, 7, dtype=torch.int64) for name in ("input_ids", "attention_mask")
    }
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        model, kwargs=example, f=str(path), dynamo=True, verbose=False,
        dynamic_shapes=dict.fromkeys(example, axes),
    )  # fmt: skip
    return str(path)


def test_a_report_can_be_posted(native_bundle: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    said: list[str] = []
    report = make_report(
        native_bundle, threads=[2, 1], seconds=0.1, output=str(file), say=said.append
    )
    assert json.loads(file.read_text()) == report
    assert report["kind"] == KIND and report["selftest"]["ok"]
    assert [(item["runtime"], item["threads"]) for item in report["times"]] == [
        ("edgecompile", 1),
        ("edgecompile", 2),
    ]
    for item in report["times"]:
        assert len(item["ms"]) == len(report["lengths"]) and min(item["ms"]) > 0
    assert report["machine"]["kernel"] and report["machine"]["features"]
    assert len(said) == 3 and said[-1] == f"wrote {file}"
    assert str(tmp_path) not in file.read_text()
    assert "selftest  PASSED" in "\n".join(format_report(report))


def test_peers_run_in_the_same_rounds(native_bundle: str, onnx_file: str) -> None:
    peers = find_peers()
    if not peers:
        pytest.skip("neither onnxruntime nor openvino is installed")
    report = make_report(native_bundle, onnx=onnx_file, threads=[1], seconds=0.1)
    told = {item["runtime"]: item for item in report["times"]}
    assert set(told) == {"edgecompile", *peers}
    for name in peers:
        assert 0 <= told[name]["error_of_scale"] < 1e-4
        assert len(told[name]["ms"]) == len(report["lengths"])
    assert any(line.startswith(f"{peers[0]} differs") for line in format_report(report))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": [0]}, "must be at least 1"),
        ({"seconds": -1.0}, "seconds is -1"),
        ({"onnx": "/nowhere.onnx"}, "isn't a file"),
        ({"output": "/nowhere/report.json"}, "doesn't exist"),
    ],
)
def test_bad_arguments(native_bundle: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_report(native_bundle, **arguments)  # type: ignore[arg-type]


def test_an_onnx_file_of_another_kind(native_bundle: str, tmp_path: Path) -> None:
    if not find_peers():
        pytest.skip("neither onnxruntime nor openvino is installed")
    path = tmp_path / "text.onnx"
    path.write_text("no protocol buffer")
    with pytest.raises(InputError, match="can't open it"):
        make_report(native_bundle, onnx=str(path), threads=[1], seconds=0.1)
