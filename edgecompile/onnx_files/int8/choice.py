"""Chooses the layers in int8: as many as leave the outputs within the bounds of the precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path

from edgecompile.bundle.cases import Case
from edgecompile.models.samples import spread
from edgecompile.onnx_files.graph import OnnxGraph
from edgecompile.onnx_files.int8.quantize import Trial, choose_layers, harm, quantize
from edgecompile.onnx_files.int8.scales import ActivationScale, Layer, find_layers, find_scales
from edgecompile.onnx_files.report import Int8Layer, Int8Report
from edgecompile.onnx_files.scan import Arrays, OnnxRunner
from edgecompile.onnx_files.weights import write_graph, write_tensors
from edgecompile.precision import COSINES, TOLERANCES
from edgecompile.runtime.format.golden.compare import compare_arrays

#: Of what the verification allows a choice takes this share at most: it is made on fewer cases.
_SHARE = 0.8
_LEAST = 1 - (1 - COSINES["int8"]) * _SHARE
#: How many cases each layer alone is tried on.
_ALONE = 4


@dataclass
class Int8Choice:
    """Tries layers in int8, alone and together, in onnxruntime.

    Args:
        wide: the graph in float32.
        narrow: the graph in float16, which int8 goes into.
        inputs: the inputs to find the scales of activations with.
        cases: the cases to measure errors with.
        scratch: a folder for files.
        say: takes notes on the progress.
    """

    wide: OnnxGraph
    narrow: OnnxGraph
    inputs: InitVar[Sequence[Arrays]]
    cases: Sequence[Case]
    scratch: Path
    say: Callable[[str], None]

    def __post_init__(self, inputs: Sequence[Arrays]) -> None:
        wide, narrow, scratch, say = self.wide, self.narrow, self.scratch, self.say
        self.layers = find_layers(wide)
        say("ranges of activations")
        self.scales: Mapping[str, ActivationScale] = (
            find_scales(wide, self.layers, inputs, scratch) if self.layers else {}
        )
        # All weights that any choice may want are in one file; a choice is a graph of some KB.
        large = {**self.graph(self.layers).large, **narrow.large}
        offsets = write_tensors(large, scratch / "int8.weights")
        self._external = {name: ("int8.weights", offset) for name, offset in offsets.items()}
        self._alone: dict[str, float] = {}

    def graph(self, layers: Sequence[Layer]) -> OnnxGraph:
        """The graph with these layers in int8."""
        return quantize(self.narrow, self.wide, layers, self.scales)

    def graph_in(self, narrow: OnnxGraph, wide: OnnxGraph, layers: Sequence[Layer]) -> OnnxGraph:
        """Other forms of ``narrow`` and ``wide``, whose nodes have the same names, with these layers in int8."""
        return quantize(narrow, wide, layers, self.scales)

    def choose(self) -> tuple[list[Layer], list[tuple[int, Trial]]]:
        """The layers, and the trials."""
        few = spread(sorted(self.cases, key=_size)[: max(_ALONE, len(self.cases) // 2)], _ALONE)
        for number, layer in enumerate(self.layers):
            self.say(f"int8, layer {number + 1} of {len(self.layers)} alone")
            self._alone[layer.node] = self._try([layer], few).error
        self.say("int8, layers together")
        return choose_layers(self.layers, self._alone, lambda some: self._try(some, self.cases))

    def without_worst(self, layers: Sequence[Layer]) -> list[Layer]:
        """A tenth of the layers fewer, at least one."""
        count = max(1, len(layers) // 10)
        worst = sorted(layers, key=lambda layer: -harm(layer, self._alone))[:count]
        return [layer for layer in layers if layer not in worst]

    def report(
        self,
        layers: Sequence[Layer],
        trials: Sequence[tuple[int, Trial]],
        calibrated_on: str,
        error: float,
        cosine: float | None,
    ) -> Int8Report:
        """Everything about the choice."""
        chosen = {layer.node for layer in layers}
        rows = [(layer, self.scales[layer.value]) for layer in self.layers]
        int8_layers = [
            Int8Layer(
                node=layer.node,
                place=self.wide.place(layer.node),
                error=self._alone[layer.node],
                scale=scale.scale,
                clipped=min(1.0, 127 * scale.scale / (scale.largest or 1.0)),
                quantized=layer.node in chosen,
            )
            for layer, scale in rows
        ]
        tried = tuple((count, trial.error, trial.cosine) for count, trial in trials)
        return Int8Report(tuple(int8_layers), calibrated_on, tried, error, cosine)

    def _try(self, layers: Sequence[Layer], cases: Sequence[Case]) -> Trial:
        path = self.scratch / "int8.onnx"
        write_graph(self.graph(layers), path, self._external)
        runner = OnnxRunner(path)
        error, cosines, ok = 0.0, [], True
        for case in cases:
            outputs = runner.run(case.inputs)
            for name, expected in case.outputs.items():
                agreement = compare_arrays(outputs[name], expected, TOLERANCES["int8"])
                share = agreement.max_abs_error / (agreement.scale or 1.0)
                error = max(error, share)
                within = agreement.max_abs_error <= agreement.limit * _SHARE
                ok = ok and agreement.reason is None and within
                if agreement.cosine is not None:
                    cosines.append(agreement.cosine)
        cosine = min(cosines, default=None)
        if cosine is not None and cosine < _LEAST:
            ok = False
        return Trial(error, cosine, ok)


def _size(case: Case) -> int:
    return sum(int(array.size) for array in case.inputs.values())
