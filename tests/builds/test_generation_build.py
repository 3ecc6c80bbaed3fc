"""Generation compiled: bundles whose tokens are transformers' own, and caches that nobody copies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from click.testing import CliRunner

from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.runtime import ContextLengthError, InputError, Model, open_bundle
from edgecompile.targets.profile import load_variant
from tests.conftest import one_at_a_time
from tests.zoo.generation_bundles import build_family
from tests.zoo.generation_families import LONGEST_RUN, TARGET, load_family, make_family

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def gemma() -> LoadedModel:
    """Rotary positions, shared heads, capped scores and a layer that slides."""
    return load_family("gemma2")


@pytest.fixture(scope="session")
def gemma_bundle(shared_folder: Path, gemma: LoadedModel) -> Path:
    output = shared_folder / "gemma2.ecb"
    with one_at_a_time(shared_folder / "gemma2.lock"):
        if not output.exists():
            build_family(gemma, output, shared_folder / "gemma2.work", padded=True)
    return output


@pytest.fixture(scope="module")
def model(gemma_bundle: Path) -> Iterator[Model]:
    with open_bundle(gemma_bundle) as opened:
        yield opened


def test_tokens_are_those_of_transformers(model: Model, gemma: LoadedModel) -> None:
    assert gemma.generation is not None
    random = np.random.default_rng(4)
    for length in (1, 2, 11, LONGEST_RUN, LONGEST_RUN + 1, 70):
        prompt = random.integers(3, 97, length).tolist()
        want = gemma.generation.greedy(prompt, 16)
        assert list(model.generate(prompt, max_new_tokens=16, do_sample=False)) == want


def test_the_manifest_and_the_golden_texts(gemma_bundle: Path, model: Model) -> None:
    made = model.manifest.generation
    assert made is not None and made.max_context == 128 and made.eos == (2,)
    lengths = [bucket.axes["length"] for bucket in model.manifest.buckets]
    assert [(extent.lo, extent.hi) for extent in lengths] == [(1, 1), (2, 12), (13, LONGEST_RUN)]
    cases = json.loads((gemma_bundle / "golden" / "generation.json").read_text())["cases"]
    assert [len(case["prompt"]) for case in cases] == [1, 7, LONGEST_RUN, LONGEST_RUN + 5]
    report = json.loads((gemma_bundle / "reports" / "verify.json").read_text())
    assert len(report["texts"]) == 4 and all(text["ok"] for text in report["texts"])
    with (gemma_bundle / "weights.fp32").open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    # The table of tokens is the output head, packed.
    assert [name for name in header if "embed" in name or "lm_head" in name] == [
        next(name for name in header if name.startswith("ecpack_") and "lm_head" in name)
    ]
    # One vector for each bucket, with caches of the least context: they are most of its size.
    assert [case.case for case in model.manifest.golden] == ["hint"] * 3


def test_only_the_new_rows_of_a_cache_change(model: Model, gemma: LoadedModel) -> None:
    for length, position, last in ((1, 40, 0), (5, 17, 3), (20, 0, 19)):
        example = gemma.make_example({"length": length, "context": 128}, seed=length)
        inputs = {name: tensor.numpy() for name, tensor in example.items()}
        inputs["position"][0], inputs["last"][0] = position, last
        before = {name: inputs[name].copy() for name in gemma.module.caches}
        model.run(inputs)
        for name, old in before.items():
            changed = (inputs[name] != old).any(axis=(1, 2)).nonzero()[0].tolist()
            assert changed == list(range(position, position + last + 1))


@pytest.mark.parametrize(
    "precision", ["fp32", pytest.param("bf16", marks=pytest.mark.exhaustive), "int8"]
)
def test_no_program_allocates_anything_of_the_context(precision: str) -> None:
    """In the generated code: what is as long as the context are the inputs alone."""
    from edgecompile.backends.cpu.lowering.lower import lower_graph
    from edgecompile.backends.inductor.compat.generation import GENERATING, generate_cpp
    from edgecompile.export.export import export_model

    gemma = load_family("gemma2", cache_precision=precision)
    for length in ((1, 1), (2, 24)):
        exported = export_model(gemma, {"length": length, "context": (64, 128)})
        program = exported.program
        node = next(n for n in program.graph.nodes if n.name == "cache_0_key")
        symbol = str(node.meta["val"].shape[0])
        with GENERATING:
            module = program.module()
            lower_graph(module)
            example = exported.example({"length": length[1], "context": 100})
            generated = generate_cpp(
                module,
                example,
                load_variant("x86-64-v3"),
            )
        code = generated.wrapper[generated.wrapper.index("::run_impl(") :]
        arrays = dict(re.findall(r"int64_t (int_array_\d+)\[\] = \{([^}]*)\}", code))
        allocated = re.findall(r"aoti_torch_empty_strided\(\d+, (int_array_\d+)", code)
        assert symbol.isidentifier() and any(symbol in sizes for sizes in arrays.values())
        assert allocated and not [name for name in allocated if symbol in arrays[name]]
        calls = re.findall(r"aoti_torch_cpu_ec_cached_attention\((.*)", code)
        assert len(calls) == 2
        assert all(call.count("reinterpret_tensor_wrapper(arg") == 2 for call in calls)


def test_a_folder_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgecompile.cli import cli
    from tests.factories.folders import write_model

    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "gpt2", "gpt2", "LMHeadModel")
    (tmp_path / "prompts.txt").write_text("\n".join(["3", "5", "9", "9", "14", "30"]) + "\n")
    options = "--task causal-lm --max-context 36 --max-length 16 --buckets 1 --mode exact"
    command = f"build gpt2 --lengths prompts.txt --target {TARGET} {options} --output out.ecb"
    done = CliRunner().invoke(cli, [*command.split(), "--json"])
    assert done.exit_code == 0, done.stderr
    loaded = load_model("gpt2", max_context=36)
    assert loaded.generation is not None
    with open_bundle("out.ecb") as opened:
        lengths = [b.axes["length"] for b in opened.manifest.buckets]
        assert [(extent.lo, extent.hi) for extent in lengths] == [(1, 1), (2, 16)]
        prompt = [5, 6, 7, 8] * 5
        want = loaded.generation.greedy(prompt, 16)
        assert list(opened.generate(prompt, max_new_tokens=16, do_sample=False)) == want
    checked = CliRunner().invoke(cli, ["verify", "out.ecb", "--model", "gpt2", "--json"])
    assert checked.exit_code == 0, checked.stderr
    assert all(text["ok"] for text in json.loads(checked.stdout)["texts"])


def test_a_model_without_caches_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgecompile.cli import cli

    monkeypatch.chdir(tmp_path)
    make_family("mamba2").save_pretrained("mamba2")
    (tmp_path / "prompts.txt").write_text("\n".join(["3", "5", "9", "14", "30"]) + "\n")
    options = "--max-context 48 --max-length 16 --quick"
    command = f"build mamba2 --lengths prompts.txt --target {TARGET} {options} --output out.ecb"
    done = CliRunner().invoke(cli, [*command.split(), "--json"])
    assert done.exit_code == 0, done.stderr
    loaded = load_model("mamba2", max_context=48)
    assert loaded.generation is not None
    with open_bundle("out.ecb") as opened:
        assert "context" not in opened.manifest.axes
        prompt = [5, 6, 7, 8] * 5
        want = loaded.generation.greedy(prompt, 28)
        assert list(opened.generate(prompt, max_new_tokens=28, do_sample=False)) == want
        with pytest.raises(ContextLengthError, match="context of 48"):
            opened.generate(prompt, max_new_tokens=29)
        arrays = {spec.name: np.zeros(spec.shape, np.float32) for spec in loaded.inputs[3:]}  # type: ignore[arg-type]
        place = {"position": np.array([40]), "last": np.array([0])}
        with pytest.raises(InputError, match="40 with 9 tokens doesn't lie within the 48 rows of"):
            opened.run({"input_ids": np.full((1, 9), 5), **place, **arrays})
