"""Tables of tokens that are the output head as well: read from the packed weight, in language models alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import LoweringReport, lower_graph
from edgecompile.backends.operators import ops
from edgecompile.precision import Precision


class Step(nn.Module):
    """A language model of one product: tokens and a cache to logits."""

    def __init__(self, *, tied: bool = True, extra: bool = False, source: bool = False) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(70, 40), nn.Linear(40, 70, bias=False)
        if tied:
            self.head.weight = self.table.weight
        self.extra, self.source = extra, source

    def forward(self, ids: Tensor, cache: Tensor, cross: Tensor | None = None) -> Tensor:
        x = self.table(ids)[0]
        cache.index_copy_(0, torch.arange(2, 2 + ids.shape[1]), x)
        y = cache.sum(0, keepdim=True)
        if self.extra:
            y = y + self.table.weight.mean(0)
        if cross is not None:
            y = y + cross
        logits: Tensor = self.head(y)
        return logits


class Encoder(nn.Module):
    """A tied head without a cache, as of masked language models."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(70, 40), nn.Linear(40, 70)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(ids))
        return logits


def inputs_of(module: nn.Module) -> dict[str, Tensor]:
    inputs = {"ids": torch.randint(0, 70, (1, 5))}
    if isinstance(module, Step):
        inputs["cache"] = torch.zeros(8, 40)
        if module.source:
            inputs["cross"] = torch.randn(1, 40)
    return inputs


def lowered(
    module: nn.Module, precision: str = "fp32"
) -> tuple[torch.fx.GraphModule, LoweringReport]:
    program = torch.export.export(module.eval(), (), inputs_of(module), strict=False)
    graph = program.module()
    assert isinstance(graph, torch.fx.GraphModule)
    return graph, lower_graph(graph, Precision(precision))


def run(program: nn.Module, module: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and the module's inputs, the same each time, as they are then."""
    torch.manual_seed(1)
    inputs = inputs_of(module)
    return program(**inputs), inputs


def holds_table(graph: torch.fx.GraphModule) -> bool:
    tensors = [*graph.parameters(), *graph.buffers()]
    return any(tensor.shape == (70, 40) and tensor.dtype == torch.float32 for tensor in tensors)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_rows_come_from_the_packed_head(precision: str) -> None:
    module = Step()
    graph, report = lowered(module, precision)
    (attr,) = report.tables
    assert report.counts["tables"] == 1 and list(report.packed) == [attr]
    assert not holds_table(graph)
    packed = graph.get_buffer(attr)
    kept = ops.unpack_weight(packed, 70, 40)
    assert torch.equal(kept, module.table.weight) == (precision == "fp32")
    logits, inputs = run(graph, module)
    assert torch.equal(
        inputs["cache"][2:7], kept[inputs["ids"][0]]
    )  # exactly what the packed weight stands for
    with torch.no_grad():
        module.table.weight.copy_(kept)
    torch.testing.assert_close(logits, run(module, module)[0], rtol=0.02, atol=0.1)


def test_a_table_of_its_own_values_stays() -> None:
    graph, report = lowered(Step(tied=False), "int8")
    assert not report.tables and holds_table(graph)


def test_equal_tables_count_as_one() -> None:
    """Of a program that was read from a file, say, where they aren't one memory."""
    module = Step(tied=False)
    module.head.weight = nn.Parameter(module.table.weight.detach().clone())
    graph, report = lowered(module)
    assert report.counts["tables"] == 1 and not holds_table(graph)
    torch.testing.assert_close(run(graph, module)[0], run(module, module)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("module", [Step(extra=True), Step(source=True), Encoder()])
def test_other_readers_and_other_models_keep_the_table(module: nn.Module) -> None:
    graph, report = lowered(module)
    assert not report.tables and holds_table(graph)
    torch.testing.assert_close(run(graph, module)[0], run(module, module)[0], rtol=1e-5, atol=1e-5)


def test_a_token_of_several_texts_has_its_rows_from_there_too() -> None:
    """That program takes its caches by their addresses, and has no input of floats."""
    pytest.importorskip("transformers")
    from edgecompile.export.store import export_bucket
    from edgecompile.loaders.generators.texts_step import texts_buckets, texts_model
    from tests.zoo.generation_families import load_family

    texts = texts_model(load_family("gemma"), 3)
    table = texts.module.get_submodule("model").get_input_embeddings().weight
    program = export_bucket(texts, *texts_buckets(texts)).program
    graph = program.module()
    assert isinstance(graph, torch.fx.GraphModule)
    report = lower_graph(graph, Precision("int8"))
    assert report.counts["tables"] == 1
    tensors = [*graph.parameters(), *graph.buffers()]
    assert not any(tensor.shape == table.shape for tensor in tensors)
