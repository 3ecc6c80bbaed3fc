"""Keys and values in bfloat16 and int8, in eager and in the reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.errors import ModelError, UsageError
from edgecompile.export.export import export_model
from edgecompile.export.halves import computes_in_halves, stores_rounded, tolerance_of
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION
from edgecompile.loaders.generators.storage import BFLOAT16, FLOAT32, STORAGES
from edgecompile.loaders.load import load_model
from edgecompile.models.cache_rows import dequantize_rows, quantize_rows, to_bfloat16
from edgecompile.models.double import run_in_float64
from edgecompile.models.options import LoadOptions
from edgecompile.models.prompts import draw_inputs
from edgecompile.precision import STORED, TOLERANCES
from tests.zoo.generation_families import load_family, make_family


@pytest.fixture(scope="module", params=["bf16", "int8"])
def llama(request: pytest.FixtureRequest) -> Any:
    return load_family("llama", cache_precision=request.param)


def test_float64_is_rounded_as_float32_is() -> None:
    random = torch.Generator().manual_seed(3)
    x = torch.cat([torch.randn(5000, generator=random), torch.tensor([0.0, -0.0, 1.0, -3.5])])
    middle = torch.arange(0x3F80, 0x3F90, dtype=torch.int32) * 65536 + 32768
    x = torch.cat([x, middle.view(torch.float32), -middle.view(torch.float32)])
    want = x.to(torch.bfloat16)
    assert torch.equal(to_bfloat16(x), want)
    assert torch.equal(to_bfloat16(x.double()), want.double())
    assert torch.equal(quantize_rows(x.view(4, -1)), quantize_rows(x.view(4, -1).double()))


def test_the_reference_in_float64_rounds_them_too(llama: Any) -> None:
    inputs = draw_inputs(llama, {"length": 20, "context": 64}, 1)
    mine, wide = llama.fresh(inputs), llama.fresh(inputs)
    storage = llama.module.storage
    assert mine["cache_0_key"].dtype == getattr(torch, storage.dtype)
    with torch.no_grad():
        logits = llama.module(**mine)["logits"]
    exact = run_in_float64(llama.module, wide)["logits"]
    assert (logits - exact).abs().max() < 1e-5 * exact.abs().max()
    floats = {
        n: storage.read(x, torch.float32) if n.startswith("cache") else x for n, x in inputs.items()
    }
    llama.module.storage = FLOAT32
    try:
        whole = run_in_float64(llama.module, floats)["logits"]
    finally:
        llama.module.storage = storage
    assert (logits - whole).abs().max() > 1e-4 * exact.abs().max()


def test_pieces_give_what_transformers_gives_with_rounded_caches(llama: Any) -> None:
    made, tokens = llama.generation, torch.arange(3, 27)[None]
    with made.storing(), torch.no_grad():
        want = made.logits(tokens)
    with torch.no_grad():
        plain = made.logits(tokens)
    assert (want - plain).abs().max() > 1e-4 * want.abs().max()
    caches = {
        x.name: torch.zeros(64, *x.shape[1:], dtype=getattr(torch, x.dtype))
        for x in llama.inputs[3:]
    }
    for start, end in ((0, 11), (11, 23), (23, 24)):
        place = {"position": torch.tensor([start]), "last": torch.tensor([end - start - 1])}
        with torch.no_grad():
            logits = llama.module(input_ids=tokens[:, start:end], **place, **caches)["logits"]
        assert (logits[0] - want[end - 1]).abs().max() < 5e-5 * want[end - 1].abs().max()


def test_rounding_ends_with_its_context() -> None:
    from transformers.cache_utils import Cache

    update = Cache.update
    with STORAGES["fp32"].rounding():
        assert Cache.update is update
    with pytest.raises(ZeroDivisionError), BFLOAT16.rounding():
        assert Cache.update is not update
        _ = 1 // 0
    assert Cache.update is update


def test_what_has_no_such_caches_is_refused() -> None:
    with pytest.raises(UsageError, match="`cache_precision`"):
        LoadOptions(cache_precision="int4")
    mamba = {"module": make_family("mamba2"), "task": "causal-lm"}
    t5 = {"module": make_family("t5"), "task": "seq2seq-lm"}
    for precision in ("bf16", "int8"):
        named = f'`cache_precision="{precision}"` is for'
        with pytest.raises(
            ModelError, match=f"{named}.*Mamba2ForCausalLM keeps no keys and values"
        ):
            load_model(mamba, cache_precision=precision)
        with pytest.raises(ModelError, match=f"{named}.*T5ForConditionalGeneration has an encoder"):
            load_model(t5, cache_precision=precision)


def test_a_row_of_int8_is_as_near_as_its_scale_allows() -> None:
    random = torch.Generator().manual_seed(5)
    x = torch.randn(50, 80, generator=random) * torch.logspace(-20, 20, 50)[:, None]
    found = dequantize_rows(quantize_rows(x))
    for start in (0, 32, 64):
        block = x[:, start : start + 32]
        steps = (found[:, start : start + 32] - block).abs() / (block.abs().amax(1, True) / 127)
        assert 0.4 < steps.max() < 0.503


def test_a_graph_that_only_stores_them_has_a_tolerance_of_its_own(llama: Any) -> None:
    exported = export_model(llama, {"length": (2, 16), "context": (64, 128)})
    graph = exported.program.graph_module
    assert stores_rounded(graph) and not computes_in_halves(graph)
    assert tolerance_of("fp32", graph) == STORED
    assert tolerance_of("int8", graph) == TOLERANCES["int8"]
    module = exported.program.module()
    lower_graph(module)  # type: ignore[arg-type]
    attentions = [node for node in module.graph.nodes if node.target is CACHED_ATTENTION]
    values = [node.meta["val"] for call in attentions for node in call.args[1:3]]
    assert len(values) == 4 and {value.dtype for value in values} == {
        getattr(torch, llama.module.storage.dtype)
    }
