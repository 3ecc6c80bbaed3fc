"""Which program runs which part of a prompt."""

from __future__ import annotations

import json

import pytest

from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.generation.chunks import Chunk, ChunkPlanner
from edgecompile.runtime.gpu.programs import pad_everything
from tests.runtime.bundles import DummyBundle
from tests.runtime.generations import bucket, make_generative

MOST = 640


def plan_chunks(planner: ChunkPlanner, position: int, count: int) -> list[Chunk]:
    """The runs of ``count`` tokens from row ``position`` on."""
    chunks: list[Chunk] = []
    while count > 0:
        chunk = planner.next_chunk(position, count)
        chunks.append(chunk)
        position += chunk.taken
        count -= chunk.taken
    return chunks


def planner(
    bundle: DummyBundle, *buckets: tuple[str, int, int], padded: bool = False
) -> ChunkPlanner:
    make_generative(bundle)
    document = bundle.document
    document["buckets"] = [bucket(*item) for item in buckets]
    for item in document["buckets"]:
        item["axes"]["context"].update(hi=MOST, hint=MOST)
    document["axes"]["length"]["hi"] = max(hi for _, _, hi in buckets)
    document["axes"]["context"]["hi"] = document["generation"]["max_context"] = MOST
    document["golden"] = []
    programs = document["variants"][0]["programs"]
    document["variants"][0]["programs"] = [programs[0] for _ in buckets]
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    assert manifest.generation is not None
    if padded:
        everything = pad_everything(manifest, False)
        return ChunkPlanner(everything, manifest.generation, MOST, manifest)
    return ChunkPlanner(manifest, manifest.generation)


def test_a_prompt_within_a_bucket_is_one_run(bundle: DummyBundle) -> None:
    made = planner(bundle, ("exact", 1, 1), ("pad", 2, 16), ("exact", 17, 32))
    assert plan_chunks(made, 0, 1) == [Chunk(0, 1, 1, 64)]
    assert plan_chunks(made, 0, 5) == [Chunk(1, 5, 16, 64)]
    assert plan_chunks(made, 0, 17) == [Chunk(2, 17, 17, 64)]
    assert plan_chunks(made, 50, 17) == [Chunk(2, 17, 17, 128)]


def test_a_long_prompt_is_cut_at_the_longest_bucket(bundle: DummyBundle) -> None:
    made = planner(bundle, ("exact", 1, 1), ("exact", 2, 32))
    assert [c.taken for c in plan_chunks(made, 0, 101)] == [32, 32, 32, 5]
    assert [c.rows for c in plan_chunks(made, 0, 101)] == [64, 64, 128, 128]


def test_lengths_in_a_gap_are_filled_up(bundle: DummyBundle) -> None:
    made = planner(bundle, ("exact", 1, 1), ("exact", 8, 16), ("pad", 24, 32))
    assert plan_chunks(made, 0, 5) == [Chunk(1, 5, 8, 64)]
    assert plan_chunks(made, 0, 20) == [Chunk(2, 20, 32, 64)]


def test_at_the_end_of_the_context_nothing_is_filled_up_beyond_it(bundle: DummyBundle) -> None:
    made = planner(bundle, ("exact", 1, 1), ("pad", 2, 64))
    assert plan_chunks(made, MOST - 64, 3) == [Chunk(1, 3, 64, MOST)]
    assert plan_chunks(made, MOST - 63, 3) == [Chunk(0, 1, 1, MOST)] * 3
    assert plan_chunks(made, MOST - 1, 1) == [Chunk(0, 1, 1, MOST)]


def test_where_a_mode_pads_and_the_context_has_no_room_tokens_run_as_they_are(
    bundle: DummyBundle,
) -> None:
    made = planner(
        bundle,
        ("exact", 1, 1),
        ("exact", 2, 32),
        ("exact", 33, 500),
        ("pad", 501, 600),
        padded=True,
    )
    assert plan_chunks(made, 100, 37) == [Chunk(2, 37, 500, MOST)]
    assert plan_chunks(made, 200, 37) == [Chunk(2, 37, 37, MOST)]
    assert plan_chunks(made, 200, 20) == [Chunk(1, 20, 32, MOST)]
    assert plan_chunks(made, MOST - 40, 40) == [Chunk(2, 40, 40, MOST)]
    assert plan_chunks(made, MOST - 31, 31) == [Chunk(1, 31, 31, MOST)]
    # What the bundle pads takes nothing else.
    assert [c.bucket for c in plan_chunks(made, 0, 600)] == [3]
    assert [c.bucket for c in plan_chunks(made, 60, 580)] == [2, 2]


@pytest.mark.parametrize("count", range(1, MOST + 1, 37))
def test_every_plan_covers_the_text_within_buckets_and_context(
    bundle: DummyBundle, count: int
) -> None:
    made = planner(bundle, ("exact", 1, 1), ("pad", 3, 50), ("exact", 60, 90), ("pad", 91, 128))
    spans = {0: (1, 1), 1: (50, 50), 2: (60, 90), 3: (128, 128)}
    for position in {0, 1, 63, MOST - count} - set(range(MOST - count + 1, MOST)):
        row = position
        for chunk in plan_chunks(made, position, count):
            low, high = spans[chunk.bucket]
            assert low <= chunk.length <= high
            assert 1 <= chunk.taken <= chunk.length
            assert row + chunk.length <= chunk.rows <= MOST
            assert chunk.rows % 64 == 0 and chunk.rows < row + chunk.length + 64
            row += chunk.taken
        assert row == position + count
