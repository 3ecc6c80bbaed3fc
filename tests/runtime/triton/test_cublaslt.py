"""Products by cuBLASLt: ``tune`` takes it where it is faster, and Triton's kernels compute whatever it doesn't.

cuBLASLt and CUDA's driver are fakes, the programs are written by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.commands.info import describe_bundle
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.measure.prepared import spread_sizes
from edgecompile.runtime.measure.products import choose_rows, format_products
from edgecompile.runtime.measure.tune import tune_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import (
    VARIANT,
    FakeCublasLt,
    TritonBundle,
    TritonMultiplier,
    make_inputs,
    multiply,
)

SLOW = "TOY_REPEAT=400"
VERSION = 130002


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    path = tmp_path / "cache"
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(path))
    return path


@pytest.fixture
def cublaslt(
    fake_driver: FakeCudart, fake_driver_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeCublasLt:
    fake = FakeCublasLt(fake_driver_path)
    monkeypatch.setenv("EDGECOMPILE_CUBLASLT", fake.path)
    assert fake.products >= 0
    return fake


def tune(path: str, **how: Any) -> dict[str, Any]:
    return tune_bundle(path, seconds=0.0, **how)


def check(path: str, mode: str = "planned") -> dict[str, Any]:
    """That it computes what it should, also as graphs; what it says of cuBLASLt."""
    with open_bundle(path, mode=mode) as model:
        for length in (3, 40, 3, 20):
            for batch in (1, 2):
                inputs = make_inputs(length, batch)
                for _ in range(12):
                    got = model.run(inputs)
                for name, want in multiply(inputs).items():
                    assert (got[name] == want).all()
        tuned: dict[str, Any] = model.info["tuned"]
        return tuned


def record(path: str, **changes: Any) -> None:
    """Changes what ``tune`` recorded of cuBLASLt."""
    file = Path(tune(path)["record"])
    document = json.loads(file.read_text())
    document["cublaslt"].update(changes)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("mode", ["default", "planned", "reduce-overhead"])
def test_it_computes_what_is_faster(cublaslt: FakeCublasLt, tmp_path: Path, mode: str) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb", SLOW).write()
    with open_bundle(path) as model:
        assert model.info["tuned"] is None
        plain = model.info["scratch_bytes"]
    report = tune(path)
    assert report["state"] == "tuned" and report["choice"] == [0, 0] and not report["notes"]
    first = [rows[0] for rows in report["cublaslt"]["rows"]]
    assert all(rows >= 0 for rows in first)
    assert cublaslt.products > 0
    # The second product is left to its kernel, whatever was measured.
    rows = [[item, -1] for item in first]
    record(path, rows=rows)
    told = check(path, mode)
    assert told["cublaslt"] == {"version": VERSION, "rows": rows, "failure": ""}
    assert cublaslt.products > 0
    with open_bundle(path) as model:
        assert model.info["scratch_bytes"] == plain + (32 << 20)


def test_it_is_left_where_it_is_slower(
    cublaslt: FakeCublasLt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    monkeypatch.setenv("FAKE_CUBLASLT", "slow")
    report = tune(path)
    assert report["cublaslt"]["rows"] == [[-1, -1], [-1, -1]]
    assert cublaslt.products > 0
    assert check(path)["cublaslt"] is None and cublaslt.products == 0


def test_it_computes_from_so_many_rows_on(cublaslt: FakeCublasLt, tmp_path: Path) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    record(path, rows=[[6, 0], [-1]])
    with open_bundle(path, mode="default") as model:
        model.warm_up()
        assert cublaslt.products > 0
        for length, batch, wanted in ((5, 1, 1), (6, 1, 2), (3, 2, 2), (40, 2, 0)):
            model.run(make_inputs(length, batch))
            assert cublaslt.products == wanted


def test_a_wrong_one_is_dropped(
    cublaslt: FakeCublasLt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb", SLOW).write()
    monkeypatch.setenv("FAKE_CUBLASLT", "wrong")
    report = tune(path)
    assert report["cublaslt"]["rows"] == [[-1, -1], [-1, -1]]
    assert [note.split(":")[1] for note in report["notes"]] == [
        " cuBLASLt is dropped, its golden vector"
    ] * 2
    assert check(path)["cublaslt"] is None


def test_warming_up_computes_large_runs(cublaslt: FakeCublasLt, tmp_path: Path) -> None:
    """The first one loads the library, for which requests would wait."""
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    record(path, rows=[[40, -1], [-1, -1]])
    cublaslt.products  # noqa: B018
    for warmup in (False, True):
        with open_bundle(path, mode="default", warmup=warmup):
            assert cublaslt.products == warmup


def test_what_it_was_told_of_a_product_is_kept(cublaslt: FakeCublasLt, tmp_path: Path) -> None:
    """Of 1,024 pairs of product and rows; one more drops them all."""
    bundle = TritonMultiplier(tmp_path / "x.ecb")
    document = bundle.bundle.document
    document["axes"]["length"]["hi"] = document["buckets"][1]["axes"]["length"]["hi"] = 600
    document["buckets"][1]["mode"] = "exact"
    path = bundle.write()
    record(path, rows=[[-1], [0, 0]])
    with open_bundle(path, mode="default", warmup=False) as model:
        cublaslt.searches  # noqa: B018
        for length in range(33, 33 + 512):
            model.run(make_inputs(length))
        assert cublaslt.searches == 1024
        for length in (544, 33, 300):
            model.run(make_inputs(length))
        assert cublaslt.searches == 0
        model.run(make_inputs(545))
        model.run(make_inputs(544))
        assert cublaslt.searches == 4


@pytest.mark.parametrize(("fault", "why"), [("none", "GetHeuristic"), ("refuse", "cublasLtMatmul")])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_what_it_refuses_is_computed_by_tritons_kernels(
    cublaslt: FakeCublasLt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    why: str,
    mode: str,
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    record(path, rows=[[0, 0], [0, 0]])
    assert check(path, mode)["cublaslt"]["failure"] == "" and cublaslt.products > 0
    monkeypatch.setenv("FAKE_CUBLASLT", fault)
    assert why in check(path, mode)["cublaslt"]["failure"] and cublaslt.products == 0
    report = tune(path, force=True)
    assert report["cublaslt"]["rows"] == [[-1, -1], [-1, -1]] and why in report["notes"][0]


def test_another_version_than_the_tuned_one_is_not_used(
    cublaslt: FakeCublasLt, tmp_path: Path
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb", SLOW).write()
    record(path, version=120803, rows=[[0, 0], [0, 0]])
    cublaslt.products  # noqa: B018
    told = check(path)["cublaslt"]
    assert told["failure"] == "it was tuned with cuBLASLt 120803, this is 130002"
    assert cublaslt.products == 0
    report = tune(path)
    assert report["state"] == "tuned" and report["cublaslt"]["version"] == VERSION
    assert tune(path)["state"] == "already tuned"


def command(*arguments: str, library: str) -> Any:
    """What a process says in which cuBLASLt is that library."""
    run = [sys.executable, "-m", "edgecompile.runtime", *arguments, "--json"]
    environment = {**os.environ, "EDGECOMPILE_CUBLASLT": library}
    return json.loads(subprocess.run(run, env=environment, capture_output=True, check=True).stdout)


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("library", "can't be loaded: {}: cannot open shared object file"),
        ("content", "can't be loaded: {}: file too short"),
        ("functions", "{} has no cublasLtCreate"),
    ],
)
def test_without_it_all_is_as_ever(
    cublaslt: FakeCublasLt,
    fake_driver_path: Path,
    tmp_path: Path,
    missing: str,
    why: str,
) -> None:
    library = str(fake_driver_path if missing == "functions" else tmp_path / "libcublasLt.so.13")
    if missing == "content":
        Path(library).write_bytes(b"no library")
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    report = command("tune", path, "--seconds", "0", library=library)
    assert report["cublaslt"]["version"] == 0 and report["cublaslt"]["rows"] == [[], []]
    assert why.format(library) in report["cublaslt"]["why"] and not report["notes"]
    report = command("tune", path, library=library)
    assert report["state"] == "already tuned" and not report["notes"]
    # With it the record is too old. An environment without it leaves the new one alone.
    assert tune(path)["state"] == "tuned"
    record(path, rows=[[0, 0], [0, 0]])
    assert command("selftest", path, library=library)["ok"]
    report = command("tune", path, "--seconds", "0", library=library)
    assert report["state"] == "already tuned" and report["cublaslt"]["version"] == VERSION
    assert report["notes"][0].startswith("tuned with cuBLASLt 13.0.2, which isn't here")
    report = tune(path)
    assert report["state"] == "already tuned" and not report["notes"]


SECOND_LOOK = """
import os, sys
from edgecompile.runtime.measure.tune import tune_bundle
path, library = sys.argv[1:]
for name in (path + "/none.so", library):
    os.environ["EDGECOMPILE_CUBLASLT"] = name
    print(tune_bundle(path, seconds=0.0, force=True)["cublaslt"]["version"])
"""


def test_a_process_looks_for_it_once(cublaslt: FakeCublasLt, tmp_path: Path) -> None:
    """Later the environment may be changed by another thread meanwhile."""
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    command = [sys.executable, "-c", SECOND_LOOK, path, cublaslt.path]
    assert subprocess.run(command, capture_output=True, check=True).stdout.split() == [b"0", b"0"]


def test_it_is_loaded_when_it_is_wanted(cublaslt: FakeCublasLt, tmp_path: Path) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    record(path, rows=[[1000, -1], [1000, -1]])
    library = str(tmp_path / "none.so")
    assert command("selftest", path, library=library)["ok"]
    assert check(path)["cublaslt"]["failure"] == ""


def test_info_and_the_report_say_so(cublaslt: FakeCublasLt, tmp_path: Path) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    record(path, rows=[[0, -1], [40]])
    verdicts = {x["name"]: str(x["verdict"]) for x in describe_bundle(path)["variants"]}
    assert verdicts[VARIANT].endswith(
        "program by bucket: 1 of 1, 1 of 1; some products by cuBLASLt"
    )
    lines = format_products({"version": VERSION, "rows": [[0, -1], [40]], "why": ""})
    assert lines == [
        "cuBLASLt 13.0.2, bucket 0: product 1 from 0 rows on",
        "cuBLASLt 13.0.2, bucket 0: product 2 isn't faster",
        "cuBLASLt 13.0.2, bucket 1: product 1 from 40 rows on",
    ]
    assert format_products({"version": 0, "rows": [], "why": "it is gone"}) == [
        "no cuBLASLt: it is gone"
    ]
    # Of a record that somebody changed; nothing else needs it.
    assert format_products({"version": 0, "rows": []}) == ["no cuBLASLt: tuned without it"]


def test_programs_are_chosen_beside_it(cublaslt: FakeCublasLt, tmp_path: Path) -> None:
    bundle = TritonMultiplier(tmp_path / "x.ecb", "TOY_REPEAT=2000")
    bundle.add_alternatives()
    path = bundle.write()
    report = tune(path)
    assert report["choice"] == [1, 1] and report["cublaslt"]["version"] == VERSION
    check(path)


def test_nothing_is_left_behind(
    fake_driver: FakeCudart, cublaslt: FakeCublasLt, tmp_path: Path
) -> None:
    path = TritonMultiplier(tmp_path / "x.ecb").write()
    tune(path)
    record(path, rows=[[0, 0], [0, 0]])
    check(path)
    assert fake_driver.live == 0 and fake_driver.misuses == 0


def test_the_rows_of_most_gain_are_taken() -> None:
    rows = [1, 8, 64, 512]
    assert choose_rows(rows, [1, 1, 1, 1], [1.2, 1.0, 0.9, 0.8]) == 64
    assert choose_rows(rows, [1, 1, 1, 1], [0.9, 1.02, 0.9, 0.8]) == 1
    assert choose_rows(rows, [1, 1, 1, 1], [0.5, 1, 1, 1.6]) == -1
    assert choose_rows(rows, [1, 1, 1, 1], [0.996, 0.996, 0.996, 0.996]) == -1
    assert choose_rows([8, 8, 9], [1, 1, 1], [0.9, 1.3, 0.9]) == 9
    assert choose_rows([], [], []) == -1


def test_sizes_go_from_end_to_end(triton_bundle: TritonBundle) -> None:
    manifest = BundleFolder(triton_bundle.write()).manifest
    exact, padded = spread_sizes(manifest, 0), spread_sizes(manifest, 1)
    assert exact[0] == {"batch": 1, "length": 1} and exact[-1] == {"batch": 2, "length": 32}
    assert [x["batch"] * x["length"] for x in exact] == sorted(
        {x["batch"] * x["length"] for x in exact}
    )
    assert padded == [{"batch": 2, "length": 64}] or padded[0] == {"batch": 1, "length": 64}
