"""Anything but a model is refused by name, with a cure, before anything else is asked for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edgecompile.errors import LengthsError, ModelError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.kinds import check_form, is_program_archive
from edgecompile.loaders.load import load_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope
from tests.cli.command import python, run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.txt").write_text("what is a list\n")
    return tmp_path


def scripted(path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path)


def exported(path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), path)


def text(content: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(content)


def holding(**files: str) -> Callable[[Path], Any]:
    def make(path: Path) -> None:
        path.mkdir()
        for name, content in files.items():
            (path / name.replace("__", ".")).write_text(content)

    return make


FACTORY = "file.py:function"
BERT = json.dumps({"model_type": "bert"})


@pytest.mark.parametrize(
    ("name", "make", "message", "hint"),
    [
        ("m.gguf", text("x"), "'m.gguf' is no valid GGUF file: it ends", "fetch it again"),
        ("any", text("GGUF…"), "'any' is no valid GGUF file: it ends", "fetch it again"),
        ("m.tflite", text("x"), "a TensorFlow Lite model", "from the PyTorch model"),
        ("any", text("\x1c\0\0\0TFL3"), "a TensorFlow Lite model", "from the PyTorch model"),
        ("m.h5", text("x"), "a Keras or TensorFlow model", "from the PyTorch model"),
        ("m.pt", scripted, "a TorchScript program", "start from the nn.Module"),
        ("models.bin", scripted, "a TorchScript program", "start from the nn.Module"),
        ("m.pt", lambda path: torch.save({}, path), "pickled weights", FACTORY),
        ("any", lambda path: torch.save({}, path), "pickled weights", FACTORY),
        ("m.ckpt", text("x"), "pickled weights", FACTORY),
        ("m.safetensors", text("x"), "without the model's configuration", "beside its config.json"),
        ("m.json", text("x"), "a JSON file", "the folder that holds it"),
        ("m.py", text("x"), "a Python file", FACTORY),
        ("notes.txt", text("x"), "cannot read 'notes.txt'", "file.py:factory"),
        ("d", holding(), "'d' is an empty folder", "config.json and safetensors"),
        ("d", holding(adapter_config__json="{}"), "an adapter \\(LoRA\\)", "merge_and_unload"),
        ("d", holding(model_index__json="{}"), "several models", "one of them"),
        ("d", holding(m__gguf=""), "'d/m.gguf' is no valid GGUF file", "fetch it again"),
        ("d", holding(notes__txt=""), "has no config.json .*it holds notes.txt", "save_pretrained"),
        (
            "d",
            holding(config__json=BERT, m__onnx=""),
            "m.onnx is an ONNX model",
            "that file itself",
        ),
        ("d", holding(config__json=BERT, m__gguf=""), "'d/m.gguf' is no valid", "fetch it again"),
        ("d", holding(config__json=BERT), "has neither model.safetensors", "save_pretrained"),
        ("d", holding(config__json='{"quantization_config": {"bits": 4}}'), "quantized", "float"),
    ],
)
def test_other_formats_have_a_sentence_and_a_cure_of_their_own(
    folder: Path, name: str, make: Callable[[Path], Any], message: str, hint: str
) -> None:
    make(folder / name)
    with pytest.raises(ModelError, match=message) as failure:
        check_form(name)
    assert hint in (failure.value.hint or "")
    result = run("build", name, "--texts", "log.txt")
    assert result.exit_code == 32, result.stderr
    assert f"error: {failure.value.message}\n" in result.stderr


HUB = "hf download {0} --local-dir {1}"


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("bert-base-uncased", HUB.format("bert-base-uncased", "bert-base-uncased")),
        ("Qwen/Qwen2.5-0.5B", HUB.format("Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B")),
        ("https://huggingface.co/gpt2", HUB.format("gpt2", "gpt2")),
        ("https://huggingface.co/gpt2/tree/main", HUB.format("gpt2", "gpt2")),
        ("https://huggingface.co/a/b/resolve/main/config.json", HUB.format("a/b", "b")),
        ("hf://a/b", HUB.format("a/b", "b")),
        ("https://example.com/model.zip", "nothing is ever fetched"),
        ("./nowhere", "config.json and safetensors"),
        ("just a word", "config.json and safetensors"),
        ("nowhere.onnx", "the file doesn't exist"),
        ("nowhere.GGUF", "the file doesn't exist"),
        ("nowhere.py", FACTORY),
        ("nowhere.py:make", FACTORY),
    ],
)
def test_what_is_not_there_is_looked_for_where_it_may_be(spec: str, hint: str) -> None:
    for refuse in (check_form, load_model):
        with pytest.raises(ModelError, match=r"there is no (model|file) '") as failure:
            refuse(spec)
        assert hint in (failure.value.hint or "")
        assert failure.value.exit_code == 32


@pytest.mark.parametrize("name", ["m.pt2", "m.pt", "any"])
def test_a_saved_program_is_known_by_what_it_holds(folder: Path, name: str) -> None:
    exported(folder / name)
    check_form(name)
    assert is_program_archive(folder / name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "m.tflite"),
        ("build", "m.tflite", "--texts", "log.txt"),
        ("build", "m.tflite", "--lengths", "nowhere.txt"),
        ("plan", "nowhere.txt", "--model", "m.tflite"),
        ("plan", "--texts", "log.txt", "--model", "m.tflite"),
        ("explain", "m.tflite"),
        ("export", "m.tflite", "--work-dir", "nowhere"),
        ("lengths", "--texts", "log.txt", "--model", "m.tflite"),
    ],
)
def test_every_command_looks_at_the_model_first(folder: Path, arguments: tuple[str, ...]) -> None:
    (folder / "m.tflite").write_text("x")
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (32, "")
    assert result.stderr.startswith("error: edgecompile cannot read 'm.tflite'")


def test_the_first_look_loads_no_framework(folder: Path) -> None:
    (folder / "m.tflite").write_text("x")
    program = (
        "import sys; from edgecompile.cli import cli\n"
        "try: cli.main(['build', 'm.tflite', '--texts', 'log.txt'])\n"
        "except SystemExit: print(sorted({'torch', 'transformers', 'safetensors'} & {*sys.modules}))"
    )
    root = str(Path(__file__).resolve().parents[2])
    process = python("-c", program, env={**os.environ, "PYTHONPATH": root})
    assert process.communicate()[0] == "[]\n"


def test_a_pipeline_is_looked_at_where_its_transformer_is(folder: Path) -> None:
    inner = folder / "pipe" / "0_Transformer"
    inner.mkdir(parents=True)
    (folder / "pipe" / "modules.json").write_text('[{"type": "x", "path": "0_Transformer"}]')
    with pytest.raises(ModelError, match="0_Transformer' is an empty folder"):
        check_form(folder / "pipe")
    (inner / "config.json").write_text(BERT)
    (inner / "model.safetensors").write_text("")
    check_form(folder / "pipe")
    shutil.rmtree(inner)
    with pytest.raises(ModelError, match=r"pipe' has no config\.json"):
        check_form(folder / "pipe")


NET = """
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return x + 1


model = Net()
axes = {"x": {1: "length"}}


def alone():
    return Net()


def bare():
    return Net(), {"x": torch.ones(1, 5, 4)}


def whole():
    return Net(), {"x": torch.ones(1, 5, 4)}, axes


def misspelled():
    return {"module": Net(), "inputs": {"y": torch.ones(1, 5, 4)}, "axs": axes, "limit": {}, "k": 1}
"""


def test_a_factory_that_is_none_says_what_it_is_instead(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    with pytest.raises(ModelError, match=r"is a module \(Net\), not a function") as failure:
        load_model("net.py:model")
    assert "name a function that returns it" in (failure.value.hint or "")
    with pytest.raises(ModelError, match="a module alone") as failure:
        load_model("net.py:alone")
    assert '"axes": {"x": {1: "length"}}' in (failure.value.hint or "")


def test_all_that_is_wrong_with_a_dict_is_listed_at_once(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    with pytest.raises(ModelError) as failure:
        load_model("net.py:misspelled")
    for problem in (
        "the unknown key 'axs': did you mean axes?",
        "the unknown key 'limit': did you mean limits?",
        "the unknown key 'k'",
        "forward takes no 'y'; it takes x",
        "axes names the input 'x', which doesn't exist",
    ):
        assert problem in failure.value.message


def test_a_model_without_axes_is_told_how_to_name_them(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    request = PlanRequest(LengthDistribution.from_samples([3, 4]))
    with pytest.raises(LengthsError, match="takes inputs of one size only") as failure:
        plan_scope(load_model("net.py:bare"), request)
    assert '"axes": {"x": {1: "length"}}' in str(failure.value.hint)
    assert "`image_size` of a folder takes a range" in str(failure.value.hint)


def test_missing_lengths_are_told_once_the_model_is_known(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    result = run("build", "net.py:whole")
    assert result.exit_code == 2
    assert "give --lengths, --texts, or as --from-stats" in result.stderr
