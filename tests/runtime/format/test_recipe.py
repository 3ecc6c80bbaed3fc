"""Reading and writing recipes; hostile ones are in test_hostile_manifest.py."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from edgecompile.runtime.base.errors import BundleError, DamagedBundleError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import TENSORRT, Tolerance
from edgecompile.runtime.format.recipe.parse import (
    MAX_RECIPE_BYTES,
    parse_recipe,
    read_recipe,
    sibling,
    version_pair,
)
from edgecompile.runtime.format.recipe.schema import Recipe, ShapeRange
from tests.hostile.trees import mutate, mutate_bytes, render, to_tree
from tests.runtime.bundles import ORIN, RECIPE, DummyBundle


def parse(bundle: DummyBundle, recipe: dict[str, Any]) -> Recipe:
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    return parse_recipe(json.dumps(recipe).encode(), manifest, manifest.variants[1])


def test_a_recipe_is_read_whole(bundle: DummyBundle) -> None:
    recipe = parse(bundle, bundle.add_tensorrt())
    assert recipe.to_json() == RECIPE
    assert (recipe.least, recipe.below, recipe.device.sm_count) == ("10.3", "11.0", 8)
    assert (recipe.tolerance, recipe.min_cosine) == (Tolerance(1e-5, 1e-4), 0.9999)
    assert recipe.profiles[1]["input_ids"] == ShapeRange((1, 64), (1, 64), (2, 64))
    assert recipe.predicted.scratch_bytes == (1 << 20, 2 << 20)


def test_a_recipe_for_no_jetson(bundle: DummyBundle) -> None:
    recipe = bundle.add_tensorrt()
    recipe["jetpack"] = ""
    assert parse(bundle, recipe).jetpack == ""


def test_what_is_written_is_read_again(bundle: DummyBundle) -> None:
    recipe = parse(bundle, bundle.add_tensorrt())
    data = recipe.to_bytes()
    assert parse(bundle, json.loads(data)) == recipe
    assert parse(bundle, json.loads(data)).to_bytes() == data


def test_main_memory_is_kept_where_it_is_known(bundle: DummyBundle) -> None:
    data = bundle.add_tensorrt()
    data["predicted"]["host_bytes"] = 6 << 30
    recipe = parse(bundle, data)
    assert recipe.predicted.host_bytes == 6 << 30 and recipe.to_json() == data
    data["predicted"]["host_bytes"] = None
    assert parse(bundle, data).predicted.host_bytes is None


def test_unknown_keys_are_ignored(bundle: DummyBundle) -> None:
    recipe = bundle.add_tensorrt()
    expected = parse(bundle, recipe)
    recipe["later"] = {"x": [1]}
    recipe["device"]["later"] = None
    assert parse(bundle, recipe) == expected


def test_any_cosine_may_do(bundle: DummyBundle) -> None:
    recipe = parse(bundle, {**bundle.add_tensorrt(), "min_cosine": None})
    assert recipe.min_cosine is None
    assert json.loads(recipe.to_bytes())["min_cosine"] is None


def test_every_problem_is_named(bundle: DummyBundle) -> None:
    recipe = bundle.add_tensorrt()
    recipe["opset"] = 3
    recipe["onnx"] = "a/b"
    recipe["device"]["sm_count"] = 0
    del recipe["profiles"][0]["input_ids"]
    with pytest.raises(BundleError) as caught:
        parse(bundle, recipe)
    for rule in ("recipe-range", "recipe-files", "recipe-profiles"):
        assert f"[{rule}]" in caught.value.message
    assert "4 problems" in caught.value.message


def with_side(bundle: DummyBundle, *buckets: int) -> dict[str, Any]:
    recipe = bundle.add_tensorrt()
    side = {"onnx": "model.onnx", "opset": 17, "strongly_typed": False, "float32": ["y"]}
    recipe["sides"] = [{**side, "buckets": list(buckets)}]
    return recipe


def test_a_graph_for_some_buckets(bundle: DummyBundle) -> None:
    data = with_side(bundle, 1)
    recipe = parse(bundle, data)
    assert recipe.to_json() == data
    assert [(graph.buckets, graph.float32) for graph in recipe.graphs] == [
        ((0,), None),
        ((1,), ("y",)),
    ]


def test_sides_allow_no_other_form(bundle: DummyBundle) -> None:
    recipe = with_side(bundle, 1)
    keys = ("onnx", "opset", "strongly_typed", "jetpack", "tensorrt")
    recipe["also"] = [{key: recipe[key] for key in keys}]
    with pytest.raises(BundleError, match="has the key also, which allows no sides"):
        parse(bundle, recipe)


def test_a_profile_may_be_wider_than_its_bucket(bundle: DummyBundle) -> None:
    recipe = bundle.add_tensorrt()
    recipe["profiles"][1]["input_ids"] = {"min": [1, 1], "opt": [2, 50], "max": [4, 128]}
    assert parse(bundle, recipe).profiles[1]["input_ids"].max == (4, 128)


def test_the_manifest_s_variant_is_written_as_it_was_read(bundle: DummyBundle) -> None:
    bundle.add_tensorrt()
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    variant = manifest.variants[1]
    assert (variant.backend, variant.recipe) == (TENSORRT, ORIN["recipe"])
    assert variant.to_json() == ORIN
    assert "recipe" not in manifest.variants[0].to_json()
    assert parse_manifest(manifest.to_bytes()) == manifest
    assert sibling(variant, "model.onnx") == "code/jetson-orin/model.onnx"


def test_a_recipe_of_a_bundle(bundle: DummyBundle) -> None:
    bundle.add_tensorrt()
    folder = BundleFolder(bundle.write())
    try:
        variant = folder.manifest.variants[1]
        assert read_recipe(folder, variant).to_json() == RECIPE
        path = bundle.folder / ORIN["recipe"]
        path.write_bytes(path.read_bytes().replace(b"fp16", b"fp61"))
        with pytest.raises(DamagedBundleError, match=r"recipe\.json.*\[file-hash\]"):
            read_recipe(folder, variant)
    finally:
        folder.close()


def test_a_recipe_that_is_too_large(bundle: DummyBundle) -> None:
    recipe = bundle.add_tensorrt()
    recipe["later"] = "x" * MAX_RECIPE_BYTES
    bundle.put_recipe(recipe)
    folder = BundleFolder(bundle.write())
    try:
        with pytest.raises(BundleError, match=r"\[json-size\]"):
            read_recipe(folder, folder.manifest.variants[1])
    finally:
        folder.close()


@pytest.mark.parametrize("seed", range(40))
def test_reading_is_total(bundle: DummyBundle, seed: int) -> None:
    """Whatever the bytes are: a recipe that can be written and read again, or a BundleError."""
    whole = bundle.add_tensorrt()
    tree = to_tree(whole)
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    rng = random.Random(seed)
    read = 0
    for _ in range(50):
        changed = copy.deepcopy(tree)
        for _ in range(rng.choice((1, 1, 2, 4))):
            mutate(rng, changed)
        data = render(changed).encode("utf-8", "surrogatepass")
        if rng.random() < 0.2:
            data = mutate_bytes(rng, data, 1 << 16)
        try:
            recipe = parse_recipe(data, manifest, manifest.variants[1])
        except BundleError as error:
            assert "recipe.json" in error.message
            continue
        read += 1
        assert parse_recipe(recipe.to_bytes(), manifest, manifest.variants[1]) == recipe
    assert read < 40  # most of them are broken


def test_versions_are_compared_as_numbers() -> None:
    assert version_pair("10.16.2.10") == (10, 16) > version_pair("10.3.0")
    assert version_pair("none") == (0, 0)
