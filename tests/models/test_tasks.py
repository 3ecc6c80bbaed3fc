"""Tasks: what a folder's config.json suggests, and what is loaded for each, tiny and random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgecompile.cli.options.model import _read_image_size
from edgecompile.errors import ModelError
from edgecompile.loaders.load import load_model
from edgecompile.models.options import LoadOptions
from edgecompile.models.specs import AxisLimits
from edgecompile.models.tasks import TASK_NAMES, choose_task

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
from tests.factories.folders import write_model, write_pipeline  # noqa: E402

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
WAVE = {
    **SMALL,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 12,
}
IMAGE = {**SMALL, "image_size": 16, "patch_size": 4}


def write(folder: Path, prefix: str, head: str, **settings: Any) -> Path:
    """A random model of ``prefix`` and ``head`` in transformers, the same one every time."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(transformers, prefix + head)(
            getattr(transformers, prefix + "Config")(**settings)
        )
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(
        tmp_path_factory.mktemp("vit"), "ViT", "ForImageClassification", **IMAGE,
        id2label={0: "cat", 1: "dog", 2: "träge Katze"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "main", "pipeline", "task"),
    [
        ({"architectures": ["BertModel"]}, "input_ids", False, "feature-extraction"),
        ({"architectures": ["BertForPreTraining"]}, "input_ids", False, "feature-extraction"),
        ({}, "input_ids", False, "feature-extraction"),
        ({"architectures": None}, "input_ids", True, "feature-extraction"),
        ({"architectures": ["LlamaForCausalLM"]}, "input_ids", True, "feature-extraction"),
        ({"architectures": ["LlamaForCausalLM"]}, "input_ids", False, "causal-lm"),
        ({"architectures": ["GPT2LMHeadModel"]}, "input_ids", False, "causal-lm"),
        ({"architectures": ["BertForMaskedLM"]}, "input_ids", False, "logits"),
        (
            {"architectures": ["BartForSequenceClassification"], "is_encoder_decoder": True},
            "input_ids",
            False,
            "sequence-classification",
        ),
        ({"architectures": ["ElectraForTokenClassification"]}, "input_ids", False, "token-classification"),
        ({"architectures": ["XLMForQuestionAnsweringSimple"]}, "input_ids", False, "question-answering"),
        (
            {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
            "input_ids",
            False,
            "seq2seq-encoder",
        ),
        (
            {"architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True},
            "input_features",
            False,
            "audio",
        ),
        ({"architectures": ["HubertForSequenceClassification"]}, "input_values", False, "audio"),
        ({"architectures": ["ViTModel"]}, "pixel_values", False, "image"),
    ],
)  # fmt: skip
def test_what_config_json_suggests(
    config: dict[str, Any], main: str, pipeline: bool, task: str
) -> None:
    assert choose_task(config, None, main_input=main, pipeline=pipeline).name == task


def test_tasks_of_another_kind_of_model_are_refused() -> None:
    with pytest.raises(ModelError, match=r"image is for models of image, this one reads input_ids"):
        choose_task({}, "image", main_input="input_ids", pipeline=False)
    for main in ("input_ids", "input_values", "pixel_values"):
        task = choose_task({}, "feature-extraction", main_input=main, pipeline=False)
        assert task.name == "feature-extraction"


def test_a_headed_folder_gives_hidden_states_if_asked(tmp_path: Path) -> None:
    write_model(tmp_path, "bert", "ForSequenceClassification")
    plain = load_model(tmp_path)
    assert [spec.name for spec in plain.outputs] == ["logits"]
    assert plain.labels == {"logits": ("LABEL_0", "LABEL_1")}
    assert plain.source.details["task"] == "sequence-classification"
    hidden = load_model(tmp_path, task="feature-extraction")
    assert hidden.outputs[0].name == "last_hidden_state" and hidden.labels == {}
    with pytest.raises(ModelError, match="weights are missing") as failure:
        load_model(tmp_path, task="question-answering")
    assert "trained for question-answering" in (failure.value.hint or "")


def test_softmax_is_part_of_the_program(tmp_path: Path) -> None:
    write_model(tmp_path, "bert", "ForSequenceClassification", num_labels=3)
    plain, scored = load_model(tmp_path), load_model(tmp_path, softmax=True)
    example = plain.make_example({"batch": 1, "length": 6})
    got = scored.run(example)
    assert list(got) == ["scores"] and scored.labels["scores"] == ("LABEL_0", "LABEL_1", "LABEL_2")
    torch.testing.assert_close(got["scores"], plain.run(example)["logits"].softmax(-1))


def test_classes_that_dont_exclude_each_other_get_a_sigmoid(tmp_path: Path) -> None:
    settings = {"num_labels": 3, "problem_type": "multi_label_classification"}
    write_model(tmp_path / "many", "bert", "ForSequenceClassification", **settings)
    model = load_model(tmp_path / "many", softmax=True)
    example = model.make_example({"batch": 1, "length": 6})
    want = load_model(tmp_path / "many").run(example)["logits"].sigmoid()
    torch.testing.assert_close(model.run(example)["scores"], want)
    write_model(
        tmp_path / "number", "bert", "ForSequenceClassification", num_labels=1,
        problem_type="regression",
    )  # fmt: skip
    with pytest.raises(ModelError, match="says regression"):
        load_model(tmp_path / "number", softmax=True)


def test_question_answering_takes_pairs_and_scores_real_tokens_alone(tmp_path: Path) -> None:
    write_model(tmp_path, "bert", "ForQuestionAnswering")
    model = load_model(tmp_path, softmax=True)
    assert [spec.name for spec in model.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [spec.name for spec in model.outputs] == ["start_scores", "end_scores"]
    short = model.make_example({"batch": 1, "length": 6})
    padded = {name: torch.nn.functional.pad(value, (0, 3)) for name, value in short.items()}
    got, want = model.run(padded), model.run(short)
    for name in got:
        torch.testing.assert_close(got[name][:, :6], want[name], atol=1e-6, rtol=1e-5)
        assert not got[name][:, 6:].any()
    plain = load_model(tmp_path, token_type_ids=False)
    assert [spec.name for spec in plain.inputs] == ["input_ids", "attention_mask"]


def test_pooling_and_normalization_without_a_pipeline(tmp_path: Path) -> None:
    write_model(tmp_path)
    model = load_model(tmp_path, pooling="mean", normalize=True)
    assert [spec.name for spec in model.outputs] == ["sentence_embedding"]
    example = model.make_example({"batch": 1, "length": 6}, padding=2)
    hidden = load_model(tmp_path).run(example)["last_hidden_state"][:, :4].mean(1)
    want = hidden / hidden.norm(dim=1, keepdim=True)
    torch.testing.assert_close(model.run(example)["sentence_embedding"], want)


def test_options_that_dont_go_together_are_all_named(tmp_path: Path) -> None:
    write_model(tmp_path / "plain")
    with pytest.raises(ModelError) as failure:
        load_model(tmp_path / "plain", normalize=True, softmax=True)
    assert "`normalize` is for an embedding" in failure.value.message
    assert "`softmax` is for classifiers" in failure.value.message
    pipeline = write_pipeline(
        write_model(tmp_path / "pipeline"), [("Pooling", {"pooling_mode_mean_tokens": True})]
    )
    with pytest.raises(ModelError, match=r"modules.json says how it pools"):
        load_model(pipeline, pooling="cls")
    assert load_model(pipeline, normalize=True).outputs[0].name == "sentence_embedding"
    with pytest.raises(ModelError, match=r"`image_size` is for images, but this model reads text"):
        load_model(tmp_path / "plain", image_size=((8, 8), (8, 8)))


class TestAudio:
    def test_a_waveform_has_samples_as_its_length(self, tmp_path: Path) -> None:
        model = load_model(write(tmp_path, "Wav2Vec2", "ForCTC", **WAVE))
        assert [(spec.name, spec.shape) for spec in model.inputs] == [
            ("input_values", ("batch", "length"))
        ]
        # (60 - 10) / 5 + 1 = 11, (11 - 3) / 2 + 1 = 5, (5 - 3) / 2 + 1 = 2 positions.
        assert model.axes["length"] == AxisLimits(60, None)
        assert model.outputs[0].shape == ("batch", None, 12)
        for samples, positions in ((60, 2), (79, 2), (80, 3), (1000, 49)):
            example = model.make_example({"batch": 1, "length": samples})
            assert model.run(example)["logits"].shape == (1, positions, 12)

    def test_a_mask_where_the_model_is_given_one(self, tmp_path: Path) -> None:
        settings = {**WAVE, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
        folder = write(tmp_path, "Wav2Vec2", "Model", **settings)
        model = load_model(folder, max_length=800)
        assert [spec.name for spec in model.inputs] == ["input_values", "attention_mask"]
        assert model.axes["length"].hi == 800 and model.has_mask
        (folder / "preprocessor_config.json").write_text('{"return_attention_mask": false}')
        assert [spec.name for spec in load_model(folder).inputs] == ["input_values"]
        with pytest.raises(ModelError, match="under 60, the least"):
            load_model(folder, max_length=59)

    def test_frames_of_features(self, tmp_path: Path) -> None:
        settings = {**SMALL, "feature_projection_input_dim": 8, "vocab_size": 12}
        model = load_model(write(tmp_path, "Wav2Vec2Bert", "Model", **settings))
        assert model.inputs[0].shape == ("batch", "length", 8) and model.has_mask
        assert model.outputs[0].shape == ("batch", "length", 16)

    def test_one_size_alone_leaves_the_batch(self, tmp_path: Path) -> None:
        folder = write(
            tmp_path, "Whisper", "ForConditionalGeneration", d_model=16, encoder_layers=1,
            decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=8, max_source_positions=20,
            vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1,
        )  # fmt: skip
        model = load_model(folder, batch=(1, 3))
        assert model.inputs[0].shape == ("batch", 8, 40)
        assert model.outputs[0].shape == ("batch", 20, 16)
        assert model.length_axis == "batch" and model.axes == {"batch": AxisLimits(1, 3)}
        assert any("encoder alone" in note for note in model.notes)
        with pytest.raises(ModelError, match="one size only"):
            load_model(folder, max_length=20)


class TestImages:
    def test_a_fixed_size_and_labels(self, vit: Path) -> None:
        model = load_model(vit, batch=(1, 2))
        assert model.inputs[0].shape == ("batch", 3, 16, 16) and model.length_axis == "batch"
        assert model.labels == {"logits": ("cat", "dog", "träge Katze")}
        example = model.make_example({"batch": 2})
        whole = transformers.ViTForImageClassification.from_pretrained(vit).eval()
        with torch.no_grad():
            want = whole(**example).logits
        torch.testing.assert_close(model.run(example)["logits"], want)

    def test_scores_of_pixels_are_over_the_classes(self, tmp_path: Path) -> None:
        folder = write(
            tmp_path, "Segformer", "ForSemanticSegmentation", num_labels=8, num_encoder_blocks=2,
            depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3],
            strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
            decoder_hidden_size=16, image_size=16,
        )  # fmt: skip
        model = load_model(folder, softmax=True)
        # As wide as there are classes, which width doesn't count.
        assert model.outputs[0].shape == ("batch", 8, 8, 8) and not model.labels
        example = model.make_example({"batch": 1})
        want = load_model(folder).run(example)["logits"].softmax(1)
        torch.testing.assert_close(model.run(example)["scores"], want)

    def test_a_dynamic_size_interpolates_positions(self, vit: Path) -> None:
        model = load_model(vit, image_size=((8, 32), (16, 16)))
        assert model.inputs[0].shape == ("batch", 3, "height", 16)
        assert model.length_axis == "height" and model.axes["height"] == AxisLimits(8, 32)
        assert model.run(model.make_example({"batch": 1, "height": 24}))["logits"].shape == (1, 3)

    @pytest.mark.parametrize(
        ("processor", "size"),
        [
            ({"size": {"height": 12, "width": 20}}, (12, 20)),
            ({"size": {"shortest_edge": 12}}, (12, 12)),
            ({"size": 20}, (20, 20)),
            ({"size": {"shortest_edge": 24}, "do_center_crop": True, "crop_size": 20}, (20, 20)),
            ({"size": "large"}, (16, 16)),
        ],
    )
    def test_the_processor_says_the_size(
        self, vit: Path, tmp_path: Path, processor: dict[str, Any], size: tuple[int, int]
    ) -> None:
        for file in vit.iterdir():
            (tmp_path / file.name).symlink_to(file)
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
        assert load_model(tmp_path).inputs[0].shape[2:] == size

    def test_no_size_at_all(self, tmp_path: Path) -> None:
        folder = write(
            tmp_path, "ResNet", "ForImageClassification", embedding_size=8, hidden_sizes=[8, 8],
            depths=[1, 1], layer_type="basic",
        )  # fmt: skip
        model = load_model(folder)
        assert model.inputs[0].shape == ("batch", 3, 224, 224)
        assert any("names no size of images" in note for note in model.notes)
        assert load_model(folder, image_size=((32, 32), (64, 64))).inputs[0].shape[2:] == (32, 64)


class TestOptions:
    def test_what_shapes_a_model_travels(self) -> None:
        options = LoadOptions(
            batch=(1, 4), task="image", softmax=True, image_size=((8, 16), (8, 8)), name="x"
        )
        told = json.loads(json.dumps(options.to_json()))
        assert told == {"task": "image", "softmax": True, "image_size": [[8, 16], [8, 8]]}
        again = LoadOptions.from_json(told)
        assert again == LoadOptions(task="image", softmax=True, image_size=((8, 16), (8, 8)))
        assert LoadOptions().to_json() == {}

    @pytest.mark.parametrize(
        "value",
        [None, [], 7, "x", {"task": 3}, {"image_size": [8]}, {"image_size": [["1", "2"], [3, 4]]}],
    )
    def test_what_cant_be_read_is_left_out(self, value: object) -> None:
        assert LoadOptions.from_json(value) == LoadOptions()

    @pytest.mark.parametrize(
        ("text", "spans"),
        [
            ("224", ((224, 224), (224, 224))),
            ("16x32", ((16, 16), (32, 32))),
            ("64:224", ((64, 224), (64, 224))),
            ("64:224X32", ((64, 224), (32, 32))),
        ],
    )
    def test_sizes_of_images(self, text: str, spans: Any) -> None:
        assert _read_image_size(None, None, text) == spans  # type: ignore[arg-type]

    @pytest.mark.parametrize("text", ["", "x", "0", "8:4", "1x2x3", "8.5"])
    def test_sizes_that_are_none(self, text: str) -> None:
        import click

        with pytest.raises(click.BadParameter):
            _read_image_size(None, None, text)  # type: ignore[arg-type]

    def test_every_task_has_a_name_of_its_own(self) -> None:
        assert len(set(TASK_NAMES)) == len(TASK_NAMES)
