"""attempts: less workspace, then a lower level, then fewer profiles that cover the same buckets."""

from __future__ import annotations

import dataclasses
import json

import pytest

from edgecompile.runtime.finish.attempts import (
    LEAST_WORKSPACE,
    Attempt,
    list_attempts,
    merge_profiles,
)
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.recipe.parse import parse_recipe
from edgecompile.runtime.format.recipe.schema import Recipe, ShapeRange, Side
from tests.runtime.bundles import DummyBundle

MIB = 1 << 20


@pytest.fixture
def recipe(bundle: DummyBundle) -> Recipe:
    data = bundle.add_tensorrt()
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    return parse_recipe(json.dumps(data).encode(), manifest, manifest.variants[1])


def with_profiles(recipe: Recipe, edges: list[int]) -> Recipe:
    """The recipe with one profile per upper edge, each from 1 on."""
    profiles = tuple(
        {"ids": ShapeRange((1, 1), (1, edge // 2), (2, edge)), "x": ShapeRange((1,), (1,), (2,))}
        for edge in edges
    )
    return dataclasses.replace(recipe, profiles=profiles)


def test_the_order_of_attempts(recipe: Recipe) -> None:
    wide = with_profiles(recipe, [8, 16, 32, 64, 128])
    found = list(list_attempts(wide, 1024 * MIB, 3, 5))
    assert [(a.workspace_bytes // MIB, a.optimization_level, len(a.groups)) for a in found] == [
        (1024, 3, 5),
        (256, 3, 5),
        (64, 1, 5),
        (64, 1, 3),
        (64, 1, 2),
        (64, 1, 1),
    ]
    assert found[0].groups == ((0,), (1,), (2,), (3,), (4,))
    assert found[3].groups == ((0, 1), (2, 3), (4,))
    assert found[4].groups == ((0, 1, 2, 3), (4,))
    assert found[5].groups == ((0, 1, 2, 3, 4),)
    assert found[3].profile_of() == (0, 0, 1, 1, 2)
    assert str(found[5]) == "workspace 64 MiB, optimization level 1, 1 profile"
    assert found[3].to_json() == {
        "workspace_bytes": 64 * MIB,
        "optimization_level": 1,
        "profiles": 3,
    }


def test_fewer_profiles_from_the_start(recipe: Recipe) -> None:
    wide = with_profiles(recipe, [8, 16, 32, 64, 128])
    found = list(list_attempts(wide, 1024 * MIB, 3, 2))
    assert [(a.workspace_bytes // MIB, a.optimization_level, len(a.groups)) for a in found] == [
        (1024, 3, 2),
        (256, 3, 2),
        (64, 1, 2),
        (64, 1, 1),
    ]
    assert found[0].groups == ((0, 1, 2, 3), (4,))


def test_nothing_is_tried_twice(recipe: Recipe) -> None:
    for workspace in (1, LEAST_WORKSPACE, 2 * LEAST_WORKSPACE, 1 << 40):
        for level in range(6):
            found = list(list_attempts(recipe, workspace, level, 4))
            assert len(set(found)) == len(found)
            assert all(a.workspace_bytes <= workspace for a in found)
            assert all(a.optimization_level <= level for a in found)
            assert len(found[-1].groups) == 1


def test_neighbours_in_size_are_merged_whatever_their_order(recipe: Recipe) -> None:
    mixed = with_profiles(recipe, [128, 8, 64, 16])
    first, *_, pairs, _ = list_attempts(mixed, LEAST_WORKSPACE, 1, 4)
    assert first.groups == ((0,), (1,), (2,), (3,))
    assert pairs.groups == ((1, 3), (0, 2))
    assert pairs.profile_of() == (1, 0, 1, 0)


def test_buckets_of_two_graphs_never_share_a_profile(recipe: Recipe) -> None:
    wide = with_profiles(recipe, [8, 16, 32, 64])
    sided = dataclasses.replace(wide, sides=(Side("side.onnx", 20, (1, 2)),))
    first, *_, last = list_attempts(sided, LEAST_WORKSPACE, 1, 4)
    # The profiles of a graph are neighbours: its engine numbers them from 0.
    assert first.groups == ((0,), (3,), (1,), (2,)) and first.profile_of() == (0, 2, 3, 1)
    assert last.groups == ((0, 3), (1, 2)) and last.profile_of() == (0, 1, 1, 0)
    (fewest, *_) = list_attempts(sided, LEAST_WORKSPACE, 1, 1)
    assert fewest.groups == last.groups


def test_a_merged_profile_covers_its_buckets(recipe: Recipe) -> None:
    profiles = [
        {"a": ShapeRange((1, 4), (1, 6), (8, 8))},
        {"a": ShapeRange((2, 9), (2, 12), (4, 64))},
        {"a": ShapeRange((1, 65), (1, 70), (1, 80))},
    ]
    merged = merge_profiles(profiles, [(0, 1), (2,)])
    # Tuned for the larger: 4 x 64 against 8 x 8.
    assert merged == [{"a": ShapeRange((1, 4), (2, 12), (8, 64))}, profiles[2]]
    apart = Attempt(1, 0, ((0,), (1,), (2,)))
    assert merge_profiles(profiles, apart.groups) == profiles
