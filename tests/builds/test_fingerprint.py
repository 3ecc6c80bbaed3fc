"""The keys of kept stages: every byte of every file that goes in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
from edgecompile import installation  # noqa: E402
from edgecompile.buckets.ranges import AxisRange, Bucket  # noqa: E402
from edgecompile.errors import CompileError, EdgecompileError  # noqa: E402
from edgecompile.export.store import ExportStore, model_fingerprint  # noqa: E402
from edgecompile.files import hash_tree  # noqa: E402
from edgecompile.installation import installation_id  # noqa: E402
from edgecompile.loaders.load import load_model  # noqa: E402
from edgecompile.models.options import LoadOptions  # noqa: E402
from edgecompile.pipeline.request import BuildRequest  # noqa: E402
from edgecompile.pipeline.stamp import build_key  # noqa: E402
from edgecompile.targets.profile import load_target  # noqa: E402
from tests.factories import tiny_models  # noqa: E402
from tests.factories.folders import HIDDEN, write_model, write_pipeline, write_tokenizer  # noqa: E402

MEAN = ("Pooling", {"pooling_mode_mean_tokens": True})
DENSE = (
    "Dense",
    {"in_features": HIDDEN, "out_features": 8, "bias": True, "activation_function": "Tanh"},
)
BUCKET = Bucket("exact", (("length", AxisRange(1, 16, 8)), ("batch", AxisRange(1, 1, 1))))


def plain(folder: Path) -> LoadOptions:
    write_tokenizer(write_model(folder, head="ForSequenceClassification")).parent.joinpath(
        "README.md"
    ).write_text("about it")
    return LoadOptions()


def sentences(folder: Path) -> LoadOptions:
    write_tokenizer(write_pipeline(write_model(folder), [MEAN, DENSE, ("Normalize", {})]))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "q: "}}')
    return LoadOptions()


def inner_transformer(folder: Path) -> LoadOptions:
    write_tokenizer(write_model(folder / "0_Transformer"))
    write_pipeline(folder, [MEAN])
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    return LoadOptions()


def shards(folder: Path) -> LoadOptions:
    write_model(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return LoadOptions()


def causal_lm(folder: Path) -> LoadOptions:
    write_tokenizer(write_model(folder, "gpt2", "LMHeadModel"))
    (folder / "generation_config.json").write_text('{"eos_token_id": 2, "max_length": 30}')
    return LoadOptions(task="causal-lm", max_context=32)


def seq2seq(folder: Path) -> LoadOptions:
    write_tokenizer(write_model(folder, "t5", "ForConditionalGeneration", decoder_start_token_id=0))
    assert (folder / "generation_config.json").is_file()
    return LoadOptions(task="seq2seq-lm", max_context=32)


def audio(folder: Path) -> LoadOptions:
    config = transformers.Wav2Vec2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_feat_extract_layers=1, conv_dim=(8,), conv_stride=(5,),
        conv_kernel=(10,), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer", do_stable_layer_norm=True,
    )  # fmt: skip
    transformers.Wav2Vec2Model(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"return_attention_mask": true}')
    return LoadOptions(max_length=400)


def image(folder: Path) -> LoadOptions:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=8,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": {"height": 16, "width": 16}}')
    return LoadOptions()


FOLDERS = (plain, sentences, inner_transformer, shards, causal_lm, seq2seq, audio, image)


def flipped(folder: Path) -> Iterator[Path]:
    """Every file in turn with one bit of its middle byte changed, size and time as they were."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        content, facts = path.read_bytes(), path.stat()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        yield path
        path.write_bytes(content)


@pytest.mark.parametrize("write", FOLDERS, ids=lambda write: write.__name__)
def test_one_bit_of_any_file_of_a_folder_is_another_model(
    write: Callable[[Path], LoadOptions], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    options = write(folder)

    def keys() -> list[str]:
        model = load_model(folder, options)
        parts = [model]
        if model.encoder is not None:
            parts.append(model.encoder)
        return [ExportStore(part, tmp_path).key(BUCKET) for part in parts]

    def stamp() -> str | None:
        return build_key(BuildRequest(str(folder)), load_target("cpu-x86-64"))

    known, stamped = keys(), stamp()
    assert keys() == known and stamp() == stamped
    changed, loaded = [], 0
    for path in flipped(folder):
        changed.append(path)
        assert stamp() != stamped, path
        try:
            found = keys()
        except EdgecompileError:
            continue  # no key at all: what was kept isn't used
        loaded += 1
        assert not set(found) & set(known), path
    assert len(changed) >= 3 and loaded >= 1
    assert keys() == known


def test_exchanged_dense_weights_are_exported_again(tmp_path: Path) -> None:
    """The pooling's and the dense layer's files lie in folders of their own."""
    folder = tmp_path / "model"
    sentences(folder)

    def outputs() -> torch.Tensor:
        model = load_model(folder)
        exported = ExportStore(model, tmp_path / "exported").get(BUCKET)
        example = model.make_example({"batch": 1, "length": 5})
        with torch.no_grad():
            got = exported.program.module()(**example)["sentence_embedding"]
        torch.testing.assert_close(got, model.run(example)["sentence_embedding"])
        return torch.as_tensor(got)

    from safetensors.torch import load_file, save_file

    first = outputs()
    weights = {
        name: 1.001 * t for name, t in load_file(folder / "2_Dense/model.safetensors").items()
    }
    save_file(weights, folder / "2_Dense/model.safetensors")
    assert not torch.equal(outputs(), first)


def test_the_place_of_a_folder_is_no_matter(tmp_path: Path) -> None:
    options = sentences(tmp_path / "a" / "model")
    sentences(tmp_path / "b" / "model")
    one, two = (model_fingerprint(load_model(tmp_path / name / "model", options)) for name in "ab")
    assert one == two


def test_a_saved_program_counts_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(b"not read here")
    assert hash_tree(path) == hash_tree(path)
    first = hash_tree(path)
    assert [hash_tree(path) != first for _ in flipped(tmp_path)] == [True]


@pytest.mark.slow
def test_files_of_any_size_are_hashed_whole(tmp_path: Path) -> None:
    """A hole, but for the last byte behind two gibibytes."""
    found = []
    for last in (b"a", b"b"):
        with (tmp_path / "weights").open("wb") as file:
            file.seek((2 << 30) + 1)
            file.write(last)
        found.append(hash_tree(tmp_path))
    (tmp_path / "weights").unlink()
    assert found[0] != found[1]


def test_linked_folders_count_and_circles_end(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    for path in (folder / ".git", folder / ".cache", elsewhere):
        path.mkdir(parents=True)
        (path / "file").write_text("1")
    (folder / "1_Pooling").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert set(hash_tree(folder)) == {"1_Pooling/file"}
    first = hash_tree(folder)
    (elsewhere / "file").write_text("2")
    assert hash_tree(folder) != first


def test_packages_sources_and_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> str:
        installation_id.cache_clear()
        return installation_id()

    known = now()
    assert now() == known
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert now() == known
    others = []
    with monkeypatch.context() as changed:
        changed.setenv("TORCHINDUCTOR_FREEZING", "1")
        others.append(now())
    with monkeypatch.context() as changed:
        changed.setattr(installation, "own_files_id", lambda: "changed")
        others.append(now())
    with monkeypatch.context() as changed:
        every = installation.metadata.distributions()
        found = [one for one in every if one.metadata["Name"] != "numpy"]
        changed.setattr(installation.metadata, "distributions", lambda: found)
        others.append(now())
    assert len({known, *others}) == 4
    assert now() == known


def test_what_a_factory_made_is_its_own_store_s_alone(tmp_path: Path) -> None:
    model = load_model(f"{Path(tiny_models.__file__)}:masked_mlp")
    one, two = ExportStore(model, tmp_path), ExportStore(model, tmp_path)
    assert one.key(BUCKET) == one.of(model).key(BUCKET) != two.key(BUCKET)
    two.require([BUCKET], ["any"])  # nobody can tell


def test_programs_of_other_files_are_not_packed(tmp_path: Path) -> None:
    plain(tmp_path)
    exports = ExportStore(load_model(tmp_path), tmp_path / "work")
    exports.require([BUCKET], [exports.key(BUCKET)])
    with pytest.raises(CompileError, match=r"from other files.*: 1\.\.16") as caught:
        exports.require([BUCKET], ["0123"])
    assert caught.value.hint == "run the stages export and compile again"


def test_a_damaged_export_is_made_again(tmp_path: Path) -> None:
    plain(tmp_path / "model")
    model = load_model(tmp_path / "model")
    ExportStore(model, tmp_path / "work").get(BUCKET)
    (program,) = (tmp_path / "work").glob("*/program.pt2")
    whole = program.read_bytes()
    program.write_bytes(whole[:-1])
    store = ExportStore(model, tmp_path / "work")
    assert store.get(BUCKET).strategy and not isinstance(store.get(BUCKET).source, Path)
    assert isinstance(ExportStore(model, tmp_path / "work").get(BUCKET).source, Path)
