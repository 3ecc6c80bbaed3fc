"""A dozen of the zoo's architectures, all the way; all of them counted; and what scripts/zoo does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from edgecompile.export.workcount import count_work
from edgecompile.loaders.load import load_model
from edgecompile.planning.costs.gpu_roofline import gpu_curve
from edgecompile.targets.profile import load_target
from tests.zoo import report as zoo_report
from tests.zoo import zoo
from tests.zoo.catalogue import ENTRIES
from tests.zoo.entry import LONGEST
from tests.zoo.worker import run_entry

CATALOGUE = Path(zoo_report.__file__).with_name("catalogue.py")
ROOT = Path(__file__).resolve().parents[2]

#: What other tests build, too.
BUILT_ELSEWHERE = ("gpt2", "gemma2")
#: One of each kind, the quickest to build.
DOZEN = (
    *("bart_encoder", *BUILT_ELSEWHERE, "vit", "patchtsmixer", "experts", "chunked_attention"),
    *("lstm_bidirectional", "torch_seq2seq", "text_cnn", "pointnet", "group_norm_cnn"),
)


def exhaustive_but(names: Iterable[str], kept: Collection[str]) -> list[Any]:
    """Parameters, of which the others are exhaustive."""
    return [n if n in kept else pytest.param(n, marks=pytest.mark.exhaustive) for n in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", exhaustive_but(DOZEN, set(DOZEN) - {*BUILT_ELSEWHERE}))
def test_one_goes_all_the_way(name: str, tmp_path: Path, device_python: str) -> None:
    if ENTRIES[name].sources[0] == "transformers_entries":
        pytest.importorskip("transformers")
    outcome = run_entry(ENTRIES[name], "build", tmp_path, device_python)
    assert outcome.status == "ok", f"{outcome.stage}: {outcome.reason}"
    assert outcome.stage == "compare"
    assert outcome.facts["error_of_scale"] > 0
    assert len(outcome.facts["compared"]) >= len(outcome.facts["lengths"]) == 5


def test_the_catalogue_is_large_and_its_factories_are_the_loaders() -> None:
    assert len(ENTRIES) >= 120
    assert all(name.isidentifier() and entry.name == name for name, entry in ENTRIES.items())
    # The same weights every time, and by the name that a user would give.
    one, other = (load_model(f"{CATALOGUE}:mlp") for _ in range(2))
    inputs = one.make_example({"batch": 2})
    assert one.run(inputs)["output"].equal(other.run(inputs)["output"])


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_some_channels_of_the_residual_stream_are_large(name: str) -> None:
    """Norms on the stream keep them, and norms before layers take them back."""
    pytest.importorskip("transformers")
    spec = ENTRIES[name].make()
    read: dict[str, float] = {}  # by module the largest channel that it reads, of the median one

    def note(path: str) -> Any:
        def see(module: Any, args: tuple[Any, ...]) -> None:
            sizes = args[0].abs().flatten(0, -2).amax(0)
            read[path] = float(sizes.max() / sizes.median())

        return see

    for path, part in spec.module.named_modules():
        if "Norm" in type(part).__name__ and "predictions" not in path:
            part.register_forward_pre_hook(note(path))
    with torch.no_grad():
        spec.module(**spec.inputs)
    assert len(read) == 5 and min(read.values()) > 20, read


#: Runs in a process of its own: a child that is forked beside other threads may hang in one of their locks.
CHILDREN = """
import json, os, signal, sys
from pathlib import Path
from tests.zoo.children import Limits, run_children

def act(name):
    if name == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "raises":
        raise RuntimeError("no")
    if name == "eats":
        return {"bytes": len(bytearray(8 << 30))}
    return {"status": "ok", "name": name}

names = ["crashes", "fine", "raises", "eats"]
ended = run_children(names, act, Path(sys.argv[1]), limits=Limits(memory=4 << 30))
print(json.dumps({child.name: [child.result, child.death] for child in ended}))
"""


def test_a_crash_takes_only_its_own_child(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILDREN, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    ended = json.loads(done.stdout)
    assert ended["fine"][0]["name"] == "fine"
    assert ended["crashes"] == [None, "was killed by SIGSEGV"]
    assert ended["raises"] == ended["eats"] == [None, "ended with exit code 1"]
    assert "RuntimeError: no" in (tmp_path / "raises.log").read_text()
    assert "MemoryError" in (tmp_path / "eats.log").read_text()


def test_the_mark_counts_what_eager_runs() -> None:
    ran = {"status": "refused", "stage": "export"}
    assert zoo_report.counted(ran)
    assert zoo_report.counted({"status": "ok", "stage": "load"})
    assert not zoo_report.counted({"status": "refused", "stage": "load"})
    # A child that died said no stage: it counts as a failure.
    assert zoo_report.counted({"status": "crashed"})


def test_the_table_has_a_row_for_each(tmp_path: Path) -> None:
    facts = {"mode": "pad", "rung": "static", "served": [1, 64], "allowed": [1, 128]}
    row = {"name": "a", "group": "text", "status": "ok", "stage": "compare"}
    (tmp_path / "a.json").write_text(
        json.dumps({**row, "facts": {**facts, "error_of_scale": 3e-7}})
    )
    found = zoo_report.read_results(tmp_path)
    line = zoo_report.table(list(found.values()))[-1]
    assert line == "| a | passed | pad | static | 1–64 of 1–128 | 3e-07 |"


def test_a_page_of_results_of_two_commits(tmp_path: Path) -> None:
    old = {"group": "text", "status": "refused", "stage": "export", "reason": "no"}
    record = {"commit": "abc", "models": {"bert": old, "albert": {**old, "commit": "def"}, "": old}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    known = zoo._earlier(tmp_path / "record.json")
    assert set(known) == {"bert", "albert"}, "what left the catalogue is dropped"
    known["bert"] = {**old, "name": "bert", "status": "ok", "stage": "compare", "commit": "def"}
    known["roberta"] = {**known["bert"], "commit": None}
    page = zoo_report._page(known, 2, 3, "record.json", ["esm"])
    assert "Every figure, with its commit, is in [benchmarks/record.json]" in page
    assert "**2 (66.7 %)**" in page and "- **albert**: no" in page
    assert zoo_report._record(known, 2, 3)["models"]["albert"]["commit"] == "def"


#: What torch's own counter fails at: learned parameters go into submodules as they are, or as views.
LEARNED = ("set_transformer", "latent_reader", "mlp")


@pytest.mark.parametrize("name", exhaustive_but(ENTRIES, {*DOZEN, *LEARNED}))
def test_each_has_costs_on_a_gpu(name: str) -> None:
    if ENTRIES[name].sources[0] == "transformers_entries":
        pytest.importorskip("transformers")
    model = load_model(f"{CATALOGUE}:{name}")
    if model.length_axis is None:
        pytest.skip("it has no axis to plan")
    limits = model.axes[model.length_axis]
    longest = limits.hi or LONGEST
    lengths = sorted({max(limits.lo, longest // 4), longest})
    costs = gpu_curve(count_work(model, lengths), load_target("jetson-orin"), lengths)
    assert all(costs.cost(length, "pad") > 0 for length in lengths)
