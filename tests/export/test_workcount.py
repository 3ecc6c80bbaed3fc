from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgecompile.errors import CostError, ModelError
from edgecompile.export import workcount
from edgecompile.export.workcount import count_work
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from tests.factories import tiny_models
from tests.factories.folders import HIDDEN, VOCABULARY, write_model

TINY = Path(tiny_models.__file__)
FLOAT = 4


def load(name: str, **options: Any) -> LoadedModel:
    return load_model(f"{TINY}:{name}", **options)


def tokens(module: nn.Module, width: int = tiny_models.WIDTH) -> LoadedModel:
    return load_model((module, {"x": torch.randn(1, 6, width)}, {"x": {0: "batch", 1: "length"}}))


def token_ids(module: nn.Module, high: int) -> LoadedModel:
    return load_model(
        {
            "module": module,
            "inputs": {"ids": torch.randint(0, high, (1, 6))},
            "axes": {"ids": {0: "batch", 1: "length"}},
            "bounds": {"ids": (0, high - 1)},
            "limits": {"length": (1, 200)},
        }
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_linear_and_attention_in_closed_form(batch: int) -> None:
    work = count_work(load("causal"), [4, 40], sizes={"batch": batch})
    # The layers qkv 16x48 and head 16x50; q·kᵀ and ·v of two heads of 8; all scores count,
    # also those that a causal mask hides.
    assert work.flops_per_element == batch * 2 * 16 * (48 + 50)
    assert work.flops_per_pair == batch * 2 * 2 * (2 * 8)
    assert work.fixed_flops == 0 and work.misfit == 0
    assert work.lengths == (4, 22, 40)
    assert work.flops == tuple(int(work.flops_at(n)) for n in work.lengths)
    assert work.sizes == (("batch", batch),)


def test_bytes_of_layers_in_closed_form() -> None:
    work = count_work(load("token_mlp"), [1, 64])
    assert work.weight_bytes == FLOAT * (8 * 16 + 16 + 16 * 4 + 4)
    # Two layers and the tanh between them write 16, 16 and 4 numbers, each read once.
    assert work.bytes_per_element == FLOAT * 2 * (16 + 16 + 4)
    assert work.fixed_bytes == 0 and work.bytes_per_pair == 0
    assert work.calls == 3


class Lookup(nn.Module):
    """A table of 1000 rows, of which a run needs as many as it has tokens."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 8)
        self.tied = tied

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        return F.linear(x, self.table.weight) if self.tied else x


def test_of_a_table_only_the_rows_are_read() -> None:
    work = count_work(token_ids(Lookup(tied=False), 1000), [1, 100])
    assert work.weight_bytes == 0
    row = 8 * FLOAT
    assert work.bytes_per_element == row + 2 * row  # read from the table, written, read again
    assert work.fixed_bytes == 0


def test_a_table_that_is_multiplied_by_is_read_whole_and_once() -> None:
    work = count_work(token_ids(Lookup(tied=True), 1000), [1, 100])
    assert work.weight_bytes == 1000 * 8 * FLOAT
    assert work.flops_per_element == 2 * 8 * 1000


def test_a_small_table_is_read_no_more_than_once() -> None:
    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(2, 8)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids)

    work = count_work(token_ids(Kinds(), 2), [50, 100])
    assert work.weight_bytes == 0
    assert work.fixed_bytes == 2 * 8 * FLOAT
    assert work.bytes_per_element == 2 * 8 * FLOAT


def test_a_bert_in_closed_form(tiny_model: Path) -> None:
    work = count_work(load_model(tiny_model), [3, 9, 30])
    layers, inner = 2, 32
    # Four square layers and two of the feed-forward block; attention's two products.
    matrices = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * inner
    assert work.flops_per_element == layers * 2 * matrices
    assert work.flops_per_pair == layers * 4 * HIDDEN
    assert work.lengths == (3, 9, 30)
    # The tables aren't read: vectors of each layer are biases (4 + 1 squares, 1 inner), norms.
    vectors = layers * (4 * HIDDEN + HIDDEN + inner + 4 * HIDDEN)
    table = (VOCABULARY + 40 + 2) * HIDDEN
    floats = layers * matrices + vectors + 2 * HIDDEN
    assert FLOAT * floats <= work.weight_bytes < FLOAT * (floats + table)
    assert work.notes == ()


def test_the_batch_multiplies_what_is_not_weights(tmp_path: Path) -> None:
    model = load_model(write_model(tmp_path / "m"), batch=(1, 8))
    one, eight = (count_work(model, [10, 40], sizes={"batch": batch}) for batch in (1, 8))
    assert eight.flops_per_element == 8 * one.flops_per_element
    assert eight.flops_per_pair == 8 * one.flops_per_pair
    assert eight.fixed_flops == 8 * one.fixed_flops
    assert eight.weight_bytes == one.weight_bytes


def test_what_torch_fuses_is_counted_all_the_same() -> None:
    layer = count_work(load("encoder_layer"), [4, 30])
    assert layer.flops_per_element == 2 * 2 * (4 * 16 * 16 + 2 * 16 * 32)
    assert layer.flops_per_pair == 2 * 4 * 16
    lstm = count_work(load("two_way_recurrence"), [4, 30])
    assert lstm.flops_per_element == 2 * 2 * (8 * 32 + 8 * 32)
    assert "step by step" in lstm.notes[0]


def test_a_product_with_a_vector_counts() -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.query

    assert count_work(tokens(Scores()), [4, 30]).flops_per_element == 2 * 8


def test_weights_without_products_are_told() -> None:
    class Lonely(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale.sum(0)

    work = count_work(tokens(Lonely()), [4, 30])
    assert work.notes == (
        "no products were counted in 1 Lonely, though they have matrices of weights",
    )


def test_a_second_length_is_one_of_the_sizes() -> None:
    work = count_work(load("cross_attention"), [2, 30], sizes={"memory_length": 7})
    assert work.sizes == (("memory_length", 7),)
    assert work.flops_per_element == 2 * 2 * 8 * 7 and work.flops_per_pair == 0


def test_a_saved_program_has_no_modules_to_look_at(tmp_path: Path) -> None:
    model = load("causal")
    length = torch.export.Dim("length", min=2, max=40)
    example = dict(model.make_example({"batch": 1, "length": 9}))
    program = torch.export.export(model.module, (), example, dynamic_shapes={"ids": {1: length}})
    torch.export.save(program, tmp_path / "m.pt2")
    saved, whole = count_work(load_model(tmp_path / "m.pt2"), [4, 30]), count_work(model, [4, 30])
    assert saved.flops == whole.flops
    assert saved.weight_bytes == whole.weight_bytes  # the table is looked up in, here too
    assert saved.bytes_per_element >= whole.bytes_per_element
    assert "calls no modules" in saved.notes[0]


def test_counts_that_no_quadratic_meets_say_how_far_off_it_is() -> None:
    work = count_work(load("frames"), [4, 30])
    assert work.misfit == max(
        abs(work.flops_at(n) - c) / c for n, c in zip(work.lengths, work.flops, strict=True)
    )
    assert 0.01 < work.misfit < 0.5


def state_of(module: nn.Module) -> dict[str, Any]:
    parts = dict(module.named_modules())
    return {
        "hooks": {n: len(p._forward_hooks) + len(p._forward_pre_hooks) for n, p in parts.items()},
        "training": {name: part.training for name, part in parts.items()},
        "tensors": {
            name: (id(t), t.clone())
            for name, t in (*module.named_parameters(), *module.named_buffers())
        },
        "random": torch.get_rng_state(),
        "fast": torch.backends.mha.get_fastpath_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "fused": torch.backends.cuda.flash_sdp_enabled(),
    }


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        if key == "tensors":
            for name, (identity, tensor) in value.items():
                assert identity == other[key][name][0]
                assert torch.equal(tensor, other[key][name][1])
        elif key == "random":
            assert torch.equal(value, other[key])
        else:
            assert value == other[key], key


class Stateful(nn.Module):
    """Counts its calls in place, replaces a buffer, draws, and fails if asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(8))
        self.fails_from = 1000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.last = x[0, 0] + torch.rand(8)
        if x.shape[1] >= self.fails_from:
            raise RuntimeError("too long for me")
        return self.drop(self.layer(x))


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    module = Stateful()
    model = tokens(module)
    module.train()
    module.fails_from = 30 if fails else 1000
    before = state_of(model.module)
    if fails:
        with pytest.raises(ModelError, match="too long for me"):
            count_work(model, [4, 30])
    else:
        assert count_work(model, [4, 30]).flops_per_element == 2 * 8 * 8
    assert_same(before, state_of(model.module))


def test_lengths_between_are_chosen_from_those_given() -> None:
    # Multiples of four only; the middle of 4 and 60 from the list is 36, not 32.
    model = load("chunked")
    assert count_work(model, [60, 4, 8, 36, 56, 4]).lengths == (4, 36, 60)
    assert count_work(load("token_mlp"), [5]).lengths == (5,)
    assert count_work(load("token_mlp"), [5, 6]).lengths == (5, 6)


def test_sizes_that_make_no_sense_are_refused_together() -> None:
    with pytest.raises(CostError) as caught:
        count_work(load("causal"), [0, 5, 49], sizes={"batch": 5, "depth": 2, "length": 3})
    for part in ("length 0", "length 49", "batch 5", "no axis depth", "length is given twice"):
        assert part in caught.value.message, part
    with pytest.raises(CostError, match="no length is given"):
        count_work(load("causal"), [])
    with pytest.raises(CostError, match="no axis batch"):
        count_work(load("encoder_layer"), [4], sizes={"batch": 2})
    assert count_work(load("encoder_layer"), [4], sizes={"batch": 1}).sizes == ()


def test_a_model_of_one_size_is_counted_at_it() -> None:
    fixed = load_model((nn.Linear(8, 2), {"input": torch.randn(1, 8)}))
    assert fixed.length_axis == "batch"
    assert count_work(fixed, [1]).flops == (2 * 8 * 2,)


def test_learned_parameters_may_go_into_submodules_in_every_form() -> None:
    """torch's own counter asks for gradients of views that were made without any."""

    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.randn(2, 8))
            self.plain = torch.randn(2, 8, requires_grad=True)

        def forward(self, batch: int) -> Tensor:
            return (self.own + self.plain)[None].expand(batch, -1, -1)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.queries = nn.Parameter(torch.randn(1, 2, 8)), Queries()
            self.project, self.attend = (
                nn.Linear(8, 8),
                nn.MultiheadAttention(8, 2, batch_first=True),
            )

        def forward(self, x: Tensor) -> Tensor:
            own = self.project(self.query.expand(len(x), -1, -1)) + self.project(self.query)
            more = self.project(self.queries(len(x))) + self.project(self.queries.plain)
            return self.attend(own + more, x, x)[0]

    work = count_work(tokens(Reader()), [4, 16])
    # Keys, values, scores and sums: what grows with the length is that of both.
    assert work.flops_per_element == 2 * (2 * 8 * 8 + 2 * 2 * 8)
    assert work.flops_per_pair == 0


def test_a_failure_of_the_counting_alone_is_no_fault_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(workcount._FORMULAS, torch.ops.aten.tanh, None)
    with pytest.raises(CostError, match="only while its operations are counted") as failure:
        count_work(load("token_mlp"), [4])
    assert "limits" not in (failure.value.hint or "")
