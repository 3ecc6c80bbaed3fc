"""``edgecompile drift``: from a bundle and stats files to an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.planner import plan_buckets
from edgecompile.cli import cli
from edgecompile.lengths.distribution import LengthDistribution
from tests.drift.served import BATCH, stats_document, write_bundle, write_stats
from tests.factories.folders import write_tokenizer

CURVE = CostGrid((CostPoint(1, None, 1.0), CostPoint(256, None, 256.0)), "measured")


def counts(mean: float, seed: int, n: int = 5000) -> dict[int, int]:
    values = np.random.default_rng(seed).lognormal(mean, 0.6, n).astype(int) + 1
    lengths, found = np.unique(np.minimum(values, 256), return_counts=True)
    return dict(zip(lengths.tolist(), found.tolist(), strict=True))


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A working folder with bundles, with and without lengths; the hash of the first."""
    monkeypatch.chdir(tmp_path)
    lengths = LengthDistribution.from_counts(counts(3.0, 0, 50_000), "planned")
    plan = plan_buckets(lengths, CURVE, max_buckets=4, max_sizes={"length": 256}, other_axes=BATCH)
    assert len(plan.buckets) == 4
    (tmp_path / "lengths.json").write_text(json.dumps(lengths.to_json()))
    write_bundle(tmp_path / "old.ecb", plan, None)
    return write_bundle(tmp_path / "tiny.ecb", plan, lengths)


def write(name: str, sha: str, lengths: dict[int, int], **changes: Any) -> str:
    options = {"manifest_sha256": sha, "buckets": 4, **changes}
    return str(write_stats(Path(name), stats_document(lengths, **options)))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ("drift", *arguments))


def test_nothing_to_do(shipped: str) -> None:
    stats = write("a.json", shipped, counts(3.0, 1)), write("b.json", shipped, counts(3.0, 2))
    result = run("tiny.ecb", *stats, "--json")
    assert result.exit_code == 0 and result.stderr == ""
    document = json.loads(result.stdout)
    assert document["act"] is False and document["moved"] is False and document["enough"] is True
    assert document["traffic"]["calls"] == 10_000 and document["traffic"]["files"] == 2
    text = run("tiny.ecb", *stats).stdout
    assert text.split("\n\n")[-1].startswith("nothing to do: the lengths haven't moved, and")
    assert "expected ms" in text and "observed ms" in text and "10,000" in text


def test_acting_pays(shipped: str) -> None:
    stats = write("a.json", shipped, counts(4.2, 1))
    result = run("tiny.ecb", stats)
    assert result.exit_code == 46
    assert result.stdout.split("\n\n")[-1].startswith("plan again: the buckets cost ")
    assert result.stderr.startswith("error: tiny: the buckets cost ")
    assert "hint: plan from the stats and build again" in result.stderr
    assert run("tiny.ecb", stats, "--tolerance", "9").exit_code == 0
    assert run("tiny.ecb", stats, "--min-runs", "6000").exit_code == 0
    refused = write("r.json", shipped, counts(3.0, 1), outside={300: 100})
    assert run("tiny.ecb", refused).exit_code == 46
    assert run("tiny.ecb", refused, "--max-refused", "0.1").exit_code == 0


def test_the_json(shipped: str) -> None:
    result = run("tiny.ecb", write("a.json", shipped, counts(4.2, 1)), "--json")
    assert result.exit_code == 46
    document = json.loads(result.stdout)
    assert list(document) == [
        *("bundle", "manifest_sha256", "verdict", "enough", "act", "moved", "reasons"),
        *("thresholds", "traffic", "shift", "cost", "buckets", "releases"),
    ]
    assert document["bundle"] == "tiny" and document["manifest_sha256"] == shipped
    assert document["act"] is True and document["moved"] is True
    assert document["verdict"].startswith("plan again: " + document["reasons"][0])
    assert document["thresholds"] == {
        **{"tolerance": 0.05, "max_refused": 0.01, "distance": 0.1},
        "min_calls": 1000,
    }
    assert set(document["traffic"]) == {
        *("manifests", "since", "until", "files", "calls", "runs", "refused", "refused_share"),
        *("planned_refused_share", "all_refused"),
    }
    assert set(document["shift"]) == {"distance", "chance", "planned", "asked"}
    assert document["shift"]["asked"]["n"] == 5000
    assert set(document["cost"]) == {
        *("current_ms", "optimum_ms", "excess", "planned_excess", "optimum_buckets", "modes"),
        *("max_buckets", "price_per_bucket"),
    }
    assert document["cost"]["excess"] > 0.05 and document["cost"]["max_buckets"] == 4
    (release,) = document["releases"]
    assert (release["manifest_sha256"], release["release"]) == (shipped, None)
    assert release["distance"] == document["shift"]["distance"]
    assert len(document["buckets"]) == 4
    for bucket in document["buckets"]:
        assert set(bucket) == {
            *("lo", "hi", "hint", "mode", "axes", "planned_share", "served_share"),
            *("expected_ms", "observed_ms"),
        }


def test_the_choices_reach_the_judgement(shipped: str) -> None:
    stats = write("a.json", shipped, counts(4.2, 1))
    result = run(
        *("tiny.ecb", stats, "--json", "--max-buckets", "2", "--mode", "pad"),
        *("--distance", "0.99", "--max-refused", "0.5", "--tolerance", "0.25"),
    )
    document = json.loads(result.stdout)
    assert document["cost"]["max_buckets"] == 2 and document["cost"]["modes"] == ["pad"]
    assert document["thresholds"]["distance"] == 0.99 and document["moved"] is False
    exact = run("tiny.ecb", stats, "--mode", "exact")
    assert exact.exit_code == 34 and "no costs for the mode exact" in exact.stderr


def test_too_little_traffic_is_a_warning(shipped: str) -> None:
    result = run("tiny.ecb", write("a.json", shipped, {200: 999}))
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: too little traffic to tell: 999 calls, 1000 are")
    assert result.stdout.splitlines()[-1].startswith("too little traffic to tell")
    empty = run("tiny.ecb", write("b.json", shipped, {}), "--json", "-q")
    assert empty.exit_code == 0 and json.loads(empty.stdout)["moved"] is None


def test_other_bundles_need_leave(shipped: str) -> None:
    own, other = (
        write("a.json", shipped, counts(3.0, 1)),
        write("b.json", "cd" * 32, counts(3.0, 2)),
    )
    for stats in ((other,), (own, other)):
        result = run("tiny.ecb", *stats)
        assert result.exit_code == 30 and result.stdout == ""
        assert "cd" * 32 in result.stderr and shipped in result.stderr
        assert "--any-bundle" in result.stderr
        assert run("tiny.ecb", *stats, "--any-bundle").exit_code == 0


def test_traffic_is_told_by_release(shipped: str) -> None:
    other = "cd" * 32
    files = (
        write("a.json", shipped, counts(3.0, 1), release=9),
        write("b.json", shipped, counts(3.0, 2), release=9),
        write("c.json", shipped, counts(3.0, 3, 2000), release=10, ms=3.0),
        write("d.json", other, {20: 900}, release=11, ms=5.0, outside={300: 100}),
        write("e.json", other, {}),
    )
    document = json.loads(run("tiny.ecb", *files, "--any-bundle", "--json").stdout)
    told = [
        (item["release"], item["manifest_sha256"], item["files"], item["calls"], item["mean_ms"])
        for item in document["releases"]
    ]
    assert told == [
        (None, other, 1, 0, None),
        (9, shipped, 2, 10_000, 2.0),
        (10, shipped, 1, 2000, 3.0),
        (11, other, 1, 1000, 5.0),
    ]
    assert document["traffic"]["calls"] == 13_000
    empty, nine, _, canary = document["releases"]
    assert (empty["distance"], empty["mean_length"], empty["refused_share"]) == (None, None, 0.0)
    assert nine["distance"] < 0.05 < 0.3 < canary["distance"]
    assert (canary["refused_share"], canary["mean_length"]) == (pytest.approx(0.1), 48.0)
    lines = run("tiny.ecb", *files, "--any-bundle").stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("11 ")]
    assert line.split()[:4] == ["11", other[:16], "1", "1,000"]
    bad = write("f.json", shipped, counts(3.0, 1), release=-1)
    refused = run("tiny.ecb", bad)
    assert refused.exit_code == 30 and "release: " in refused.stderr


def test_bundles_that_do_not_say_what_they_were_planned_for(shipped: str) -> None:
    stats = write("a.json", shipped, counts(3.0, 1))
    result = run("old.ecb", stats, "--any-bundle")
    assert result.exit_code == 20
    assert "reports/lengths.json" in result.stderr and "hint: build it again" in result.stderr
    given = run("old.ecb", stats, "--any-bundle", "--lengths", "lengths.json")
    assert given.exit_code == 0, given.stderr


def test_it_takes_the_traffic_options_of_the_other_commands(shipped: str) -> None:
    a, b = write("a.json", shipped, counts(3.0, 1)), write("b.json", shipped, counts(3.0, 2))
    assert run("tiny.ecb", "--from-stats", a, b).stdout == run("tiny.ecb", a, b).stdout
    assert run("tiny.ecb", "--from-stats", a).exit_code == 0
    Path("texts.txt").write_text("".join("word " * (i % 9 + 1) + "\n" for i in range(2000)))
    result = run("tiny.ecb", a, "--texts", "texts.txt")
    assert result.exit_code == 2 and "--texts need a --tokenizer" in result.stderr
    for tokenizer in (Path("tokenizer.json"), Path("tiny.ecb/tokenizer/tokenizer.json")):
        write_tokenizer(tokenizer.parent, truncate=None)
        options = ("--tokenizer", "tokenizer.json") if tokenizer.parent == Path(".") else ()
        result = run("tiny.ecb", a, "--texts", "texts.txt", *options, "--json")
        document = json.loads(result.stdout)
        assert document["moved"] is True and result.exit_code == (46 if document["act"] else 0)
        tokenizer.unlink()


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("tiny.ecb",), 2, "Missing argument 'STATS...'"),
        (("tiny.ecb", "lengths.json"), 30, "lengths.json: is a lengths file, not a device's stats"),
        (("lengths.json", "a.json"), 20, "lengths.json: is not a bundle: it isn't a folder"),
        ((".", "a.json"), 20, ".: is not a bundle: it has no manifest.json"),
        (("absent.ecb", "a.json"), 20, "absent.ecb: doesn't exist"),
        (("tiny.ecb", "absent.json"), 30, "absent.json: can't be read"),
        (("tiny.ecb", "tiny.ecb/manifest.json"), 30, "stats_version: is required"),
        (("tiny.ecb", "x", "--tolerance", "-1"), 2, "-1.0 is not in the range"),
        (("tiny.ecb", "x", "--distance", "2"), 2, "2.0 is not in the range"),
        (("tiny.ecb", "x", "--lengths", "absent"), 30, "absent"),
    ],
)
def test_errors_keep_their_codes(
    shipped: str, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.stderr
    assert expected in result.stderr and result.stdout == ""


def test_the_same_input_gives_the_same_bytes(shipped: str) -> None:
    stats = write("a.json", shipped, counts(4.2, 1))
    assert run("tiny.ecb", stats, "--json").stdout == run("tiny.ecb", stats, "--json").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("edgecompile dri", "plain,drift"),
        ("edgecompile drift min", "file,min"),
        ("edgecompile drift minilm.ecb sta", "file,sta"),
        ("edgecompile drift minilm.ecb --any", "plain,--any-bundle"),
        ("edgecompile bench minilm.ecb --against ea", "plain,eager"),
        ("edgecompile bench minilm.ecb --against old", "file,old"),
        ("edgecompile build bert --pooling me", "plain,mean"),
        ("edgecompile build bert --jetpack 6", "plain,6.2"),
    ],
)
def test_completion(words: str, expected: str) -> None:
    environment = {
        "_EDGECOMPILE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = CliRunner(env=environment).invoke(cli, [], prog_name="edgecompile")
    assert expected in done.output.splitlines()
