"""A language model and its texts: weights are rounded for some of them, and judged by the others."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from torch import Tensor

from edgecompile.errors import CompileError
from edgecompile.export.program import ExportedModel
from edgecompile.models.language_texts import LanguageTexts
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning.costs.roofline import WEIGHT_BYTES
from edgecompile.precision import (
    FP32,
    INT4,
    INT8,
    PRECISIONS,
    ROUNDED_PRODUCTS,
    Precision,
    Rounded,
)
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.quantization.gptq import RoundedWeights, mix_rounded, round_products
from edgecompile.quantization.program import QuantizedProgram
from edgecompile.quantization.quality import Judge, Quality
from edgecompile.quantization.stand_ins import StandIns
from edgecompile.runtime.format.dtypes import BFLOAT16

#: Of texts that rank layers.
_FEW, _SHORT = 4, 64
#: Weights of a model that runs its texts in float64. Larger ones would take minutes, twice as many as in float32, which
#: gives the same figures to four digits.
_MOST_WIDE = 1 << 26

#: Of a row's root mean square. Sums of a thousand numbers differ by 2**-20 in another order. With four times as much,
#: one run meets about the largest effect that eight runs of that have.
_NOISE = 2.0**-18


def is_judged(model: LoadedModel) -> bool:
    """Whether a model's narrow weights are judged by next tokens: a language model without sources."""
    return model.generation is not None and model.generation.logits is not None


def stores_rounded(model: LoadedModel) -> bool:
    """Whether a language model's keys and values are rounded where they are stored."""
    return any(spec.dtype == BFLOAT16 or spec.has_scales for spec in model.inputs)


def cache_quality(model: LoadedModel, texts: LanguageTexts) -> Quality:
    """The figures of a language model whose caches alone round, on the texts that judge.

    Raises:
        ModelError: the model fails on them.
    """
    made, judge = model.generation, _judge_of(model, texts)
    assert made is not None
    with made.storing():
        return judge.quality()


def _judge_of(
    model: LoadedModel, texts: LanguageTexts, tell: Callable[[int], None] = lambda done: None
) -> Judge:
    made = model.generation
    assert made is not None and made.logits is not None
    numbers = sum(weight.numel() for weight in model.module.parameters())
    large = numbers > _MOST_WIDE
    return Judge(made.logits, texts.judging, texts.source, texts.real, narrow=large, tell=tell)


class JudgedModel:
    """A language model, one of its programs, and texts.

    Args:
        model: the model.
        exported: the program whose products are rounded; their names are those of the others, too.
        texts: the texts.
    """

    def __init__(self, model: LoadedModel, exported: ExportedModel, texts: LanguageTexts) -> None:
        made = model.generation
        assert made is not None and made.logits is not None
        self._model = model
        self._logits, self._storing = made.logits, made.storing
        self.texts = texts
        self.program = QuantizedProgram(model, exported, (), ())
        self._places = StandIns(model.module, self.program)
        self._tell: Callable[[int], None] = lambda done: None

    @property
    def problem(self) -> str:
        """The reason why the rounded model can't be run by its library; "" if it can."""
        if not self._places.missing:
            return ""
        return (
            f"{len(self._places.missing)} of its products aren't weights of its modules as they are"
        )

    @contextmanager
    def narrowed(self, precision: Precision) -> Iterator[None]:
        """The model computes with the weights of a precision for as long as the context lasts."""
        program = self.program

        def values() -> Iterator[tuple[str, Tensor | None]]:
            for attr, names in program.names.items():
                own = precision.of(names) == FP32.name
                yield attr, None if own else program.kept_value(attr, precision)

        with self._places.replacing(values()):
            yield

    def rounding_activations(
        self, precision: Precision, rounding: Collection[str] = ROUNDED_PRODUCTS
    ) -> AbstractContextManager[None]:
        """The model rounds what products get, as kernels do, for as long as the context lasts.

        Args:
            precision: the precision of each weight.
            rounding: the names of the precisions whose products round.
        """
        return self._places.rounding_inputs(self._products_in(precision, rounding))

    def moving_inputs(
        self, precision: Precision, rounding: Collection[str], seed: int
    ) -> AbstractContextManager[None]:
        """What such products round differs by as much as float32 may, for as long as the context lasts."""
        return self._places.moving_inputs(self._products_in(precision, rounding), _NOISE, seed)

    def _products_in(self, precision: Precision, names: Collection[str]) -> list[str]:
        """The packed attributes of the products whose weights are in one of some precisions."""
        products = self.program.names.items()
        return [attr for attr, weights in products if precision.of(weights) in names]

    @cached_property
    def _judge(self) -> Judge:
        return _judge_of(self._model, self.texts, self._tell)

    @cached_property
    def _quick_judge(self) -> Judge:
        texts = self.texts
        few = [text[:, :_SHORT] for text in texts.judging[:_FEW]]
        return Judge(self._logits, few, texts.source, texts.real, narrow=True)

    def quality(self, precision: Precision, step: StepHandle = NULL_STEP) -> Quality:
        """The figures of a precision, and of the caches' own, on the texts that judge.

        Those of int4 include the rounding of its activations, as nearly every variant has it.

        Args:
            precision: the precision.
            step: told how many runs of texts are done: the original's, then its own.

        Raises:
            ModelError: the model fails on them.
        """
        count = len(self.texts.judging)
        self._tell = lambda done: step.update(done, 2 * count)
        judge = self._judge  # the original's answers, before its weights are replaced
        activations = (
            self.rounding_activations(precision) if precision.name == INT4 else nullcontext()
        )
        with self.narrowed(precision), activations, self._storing():
            quality = judge.quality(tell=lambda done: step.update(count + done, 2 * count))
        counts = Counter(precision.of(names) for names in self.program.groups)
        return replace(quality, matrices={p: counts[p] for p in PRECISIONS if p in counts})

    def rank(
        self,
        precision: Precision,
        wider: Precision = FP32,
        tell: Callable[[int], None] = lambda done: None,
    ) -> list[tuple[tuple[str, ...], float]]:
        """The products with the mean divergence that narrowing each of them alone causes.

        The first one causes most for each byte that it saves.

        Args:
            precision: the narrow precision.
            wider: the precision that a product would have instead. Products that are the same in both are left out.
            tell: a function that gets the number of products that were tried.
        """
        _ = self._quick_judge
        ranking = []
        for attr, names in self.program.names.items():
            narrow, wide = precision.of(names), wider.of(names)
            if narrow == wide:
                continue
            numbers = math.prod(self.program.shape(attr))
            saved = numbers * (WEIGHT_BYTES[wide] - WEIGHT_BYTES[narrow])
            value = self.program.kept_value(attr, precision)
            with self._places.replacing([(attr, value)]):
                ranking.append((names, self._quick_judge.quality().mean_kl, saved))
            tell(len(ranking))
        ranking.sort(key=lambda item: -item[1] / item[2])
        return [(names, divergence) for names, divergence, _ in ranking]

    @property
    def head(self) -> tuple[str, ...]:
        """The weights of the product that makes the logits; () where no product does."""
        made = self._model.generation
        assert made is not None
        program = self.program
        if not program.names:
            return ()
        (logits,) = [spec for spec in self._model.outputs if spec.name == made.spec.logits]
        attr, names = list(program.names.items())[-1]
        return names if program.shape(attr)[-2] == logits.shape[-1] else ()

    def default_precision(self, name: str) -> Precision:
        """The precision of that name as it is stored where nothing else is asked for.

        The head of a model in int4 stays int8: it's the last rounding, which nothing makes up for.
        """
        return Precision(
            name, tuple((weight, INT8) for weight in self.head) if name == INT4 else ()
        )

    def round_weights(
        self, path: Path, key: str, *precisions: Precision, step: StepHandle = NULL_STEP
    ) -> list[RoundedWeights]:
        """int8 and int4 weights rounded for the texts that calibrate, for each of some precisions.

        Args:
            path: a folder that keeps them, for the next build of the same.
            key: identifies the program.
            precisions: precisions of each weight.
            step: told what is being done.

        Raises:
            ModelError: the model fails on the texts.
        """
        texts = self.texts.calibrating
        said = f"{len(texts)} texts" if self.texts.real else f"{len(texts)} texts of its own"
        files = [path / f"gptq-{self._key(key + item.label)}.npz" for item in precisions]
        if all(file.is_file() for file in files):
            with contextlib.suppress(CompileError):  # a damaged one is made again
                return [replace(RoundedWeights.load(file), inputs=said) for file in files]
        roundable = self.program.roundable
        asked = [self._by_product(precision) for precision in precisions]
        count = sum(any(of[attr] in ROUNDED_PRODUCTS for of in asked) for attr in roundable)

        def run(index: int) -> object:
            step.update(index, len(texts), f"running {said}")
            return self._logits(texts[index])

        runs = [partial(run, index) for index in range(len(texts))]
        rounded = round_products(
            roundable,
            lambda attrs: self._places.moments(attrs, runs),
            lambda done: step.update(done, count, f"rounding weights, {done} of {count} products"),
            precisions=asked,
        )
        for weights, file in zip(rounded, files, strict=True):
            weights.keep(file, files)
        return [replace(weights, inputs=said) for weights in rounded]

    def mix_weights(self, precision: Precision, parts: Sequence[Rounded | None]) -> Precision:
        """The precision with weights of :meth:`round_weights`, each in the form that it has there."""
        known = [part for part in parts if isinstance(part, RoundedWeights)]
        return replace(precision, rounded=mix_rounded(self._by_product(precision), known))

    def _by_product(self, precision: Precision) -> dict[str, str]:
        """The precision's name of each product, by the packed attribute."""
        return {attr: precision.of(names) for attr, names in self.program.names.items()}

    def _key(self, key: str) -> str:
        parts = hashlib.sha256(key.encode())
        for text in self.texts.calibrating:
            parts.update(_bytes(text))
        return parts.hexdigest()[:16]


def _bytes(text: Tensor) -> bytes:
    return f"{tuple(text.shape)}\n".encode() + text.numpy().tobytes()
