"""Reads the manifest's ``generation``: how the programs of a language model are called in turn.

What generates trusts it as native code trusts its inputs, so everything that the loop relies on is
a rule here: which input is which, that a program for one token at any context is there, and that
every token that logits can name may be given back to the model.
"""

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ..document import Field, shorten
from ..dtypes import BFLOAT16
from .cache_rows import INT8, row_width
from .schema import (
    CAUSAL_LM,
    MANIFEST_NAME,
    MAX_LOOKUP,
    RECURRENT_LM,
    SEQ2SEQ,
    BatchSpec,
    BucketSpec,
    Dim,
    GenerationSpec,
    TensorSpec,
)
from .signature import MAX_SIZE, Signature

#: Types of caches with a row for each token.
CACHES = ("float32", BFLOAT16, INT8)
MAX_CACHES = 509
MAX_CROSS = 508
MAX_EOS = 64
MAX_START = 64
MAX_SUPPRESS = 4096
MAX_TEXTS = 64


def read_generation(
    entry: Field, signature: Signature, files: Mapping[str, Any]
) -> Optional[GenerationSpec]:
    """The ``generation`` of a manifest; None where there is none, or a problem was noted.

    Args:
        entry: the entry of the manifest.
        signature: the signature that was read before; judged only if nothing is wrong with it.
        files: the paths that the manifest lists.
    """
    sound = not entry.problems.items
    if not entry.object():
        return None
    return _GenerationReader(entry, signature if sound else None, files).read()


class _GenerationReader:
    """Reads the keys first, then holds them against the signature."""

    def __init__(
        self, entry: Field, signature: Optional[Signature], files: Mapping[str, Any]
    ) -> None:
        self.files = files
        self.entry = entry
        self.signature = signature
        self.before = entry.problems.count

    def add(self, rule: str, key: str, text: str) -> None:
        self.entry.find(key).refuse(rule, text)

    def read(self) -> Optional[GenerationSpec]:
        entry = self.entry
        kind = entry.at("kind").string()
        kinds = (CAUSAL_LM, RECURRENT_LM, SEQ2SEQ)
        if kind is not None and kind not in kinds:
            text = "{!r} is none of {}".format(shorten(kind), ", ".join(kinds))
            self.add("generation-kind", "kind", text)
        names: Dict[str, Any] = {
            key: entry.at(key).string() or ""
            for key in ("input", "position", "last", "logits", "length_axis")
        }
        context = entry.at("context_axis")
        states_alone = kind == RECURRENT_LM and context.value is None
        most = entry.at("max_context").integer()
        caches = entry.at("caches").strings(1, MAX_CACHES)
        eos = entry.at("eos").integers(0, MAX_EOS)
        bos = entry.at("bos")
        pad = entry.at("pad").integer()
        defaults = self._defaults()
        more = self._source() if kind == SEQ2SEQ else {}
        lookup = entry.find("lookup")
        longest = lookup.within(2, MAX_LOOKUP, "generation-lookup") if lookup.given else 1
        spec = GenerationSpec(
            context_axis=None if states_alone else context.string() or "",
            max_context=most or 0,
            caches=caches,
            kind=kind or "",
            eos=eos,
            bos=bos.integer() if bos.given else None,
            pad=pad or 0,
            defaults=defaults,
            lookup=longest or 1,
            batch=self._batch(kind) if entry.find("batch").given else None,
            masked_head=self._masked_head(kind),
            windows=self._windows(kind),
            **names,
            **more,
        )
        if not self._failed() and self.signature is not None:
            self._check(spec, self.signature)
        return None if self._failed() else spec

    def _failed(self) -> bool:
        return self.entry.problems.count > self.before

    def _source(self) -> Dict[str, Any]:
        """The entries for a source, where a text goes on from one."""
        entry = self.entry
        return {
            "encoder": entry.at("encoder").string() or "",
            "source": entry.at("source").string() or "",
            "cross": entry.at("cross").strings(1, MAX_CROSS),
            "start": entry.at("start").integers(1, MAX_START),
            "suppress": entry.at("suppress").integers(0, MAX_SUPPRESS),
            "suppress_first": entry.at("suppress_first").integers(0, MAX_SUPPRESS),
        }

    def _batch(self, kind: Optional[str]) -> BatchSpec:
        entry = self.entry.find("batch").object()
        texts = entry.at("texts").within(2, MAX_TEXTS, "generation-batch")
        programs = {
            name: value.path(self.files)
            for name, value in entry.at("programs").members(1, MAX_TEXTS)
            if value.check_name(name) and value.string() is not None
        }
        if kind == SEQ2SEQ:
            self.add("generation-batch", "batch", "isn't for the kind {}".format(SEQ2SEQ))
        return BatchSpec(texts or 0, programs)

    def _masked_head(self, kind: Optional[str]) -> bool:
        entry = self.entry.find("masked_head")
        if entry.given and kind == SEQ2SEQ:
            entry.refuse("generation-head", "isn't for the kind {}".format(SEQ2SEQ))
        return entry.given and bool(entry.boolean())

    def _windows(self, kind: Optional[str]) -> Dict[str, int]:
        entry = self.entry.find("windows")
        if not entry.given:
            return {}
        if kind == SEQ2SEQ:
            entry.refuse("generation-windows", "isn't for the kind {}".format(SEQ2SEQ))
        return {name: value.integer() or 0 for name, value in entry.members(1, MAX_CACHES)}

    def _defaults(self) -> Dict[str, Any]:
        """The defaults that are known, each checked."""
        entry = self.entry.at("defaults").object()
        result: Dict[str, Any] = {}
        if entry.find("do_sample"):
            result["do_sample"] = entry.find("do_sample").boolean()
        for key, least in (("top_k", 0), ("max_new_tokens", 1)):
            if entry.find(key):
                result[key] = entry.find(key).within(least, MAX_SIZE, "generation-default")
        for key in ("temperature", "top_p", "repetition_penalty"):
            if entry.find(key):
                number = entry.find(key).number()
                if number is not None and not _sensible(key, number):
                    text = "{} makes no sense".format(number)
                    entry.find(key).refuse("generation-default", text)
                result[key] = number
        return result

    def _check(self, spec: GenerationSpec, signature: Signature) -> None:
        self._check_axes(spec, signature)
        inputs = {item.name: item for item in signature.inputs}
        input_names = (spec.input, spec.position, spec.last, *spec.caches, *spec.cross)
        for name in input_names:
            if name not in inputs:
                self.entry.refuse("generation-inputs", "{!r} isn't an input".format(shorten(name)))
        if len(set(input_names)) != len(input_names):
            self.entry.refuse("generation-inputs", "an input is named twice")
        unused = sorted(set(inputs) - set(input_names))
        if unused:
            text = "nothing says what the input {!r} is".format(unused[0])
            self.entry.refuse("generation-inputs", text)
        names = [item.name for item in signature.outputs]
        if names != [spec.logits]:
            text = "the only output must be {!r}".format(shorten(spec.logits))
            self.add("generation-logits", "logits", text)
        if self._failed():
            return
        logits = signature.outputs[0]
        self._check_shape("input", inputs[spec.input], "int64", (1, spec.length_axis))
        self._check_shape("position", inputs[spec.position], "int64", (1,))
        self._check_shape("last", inputs[spec.last], "int64", (1,))
        vocabulary = logits.shape[1] if len(logits.shape) == 2 else None
        if not isinstance(vocabulary, int):
            self.add("generation-shape", "logits", "must be float32 of the shape [1, vocabulary]")
            return
        rows = 1 if spec.lookup == 1 else None
        self._check_shape("logits", logits, "float32", (rows, vocabulary))
        caches: Sequence[TensorSpec] = [inputs[name] for name in spec.caches]
        if spec.kind == RECURRENT_LM:
            caches = self._check_states(spec, caches)
        self._check_rows("caches", caches, spec.context_axis, "the context's axis", CACHES)
        for item in caches:
            size = item.shape[-1] if item.shape else None
            if item.dtype == INT8 and isinstance(size, int) and row_width(size) is None:
                text = "{!r} has rows of {} bytes, which no blocks of a scale and up to 32 numbers fill"
                self.add("generation-scales", "caches", text.format(item.name, size))
        for name, window in spec.windows.items():
            if name not in spec.caches:
                text = "{!r} is none of the caches".format(shorten(name))
                self.add("generation-windows", "windows", text)
            elif not spec.has_rows(inputs[name]):
                text = "{!r} has no row for each token"
                self.add("generation-windows", "windows", text.format(shorten(name)))
            elif not 1 <= window < spec.max_context:
                text = "{} of {!r} isn't within 1..{}"
                text = text.format(window, name, spec.max_context - 1)
                self.add("generation-windows", "windows", text)
        if spec.kind == SEQ2SEQ:
            self._check_source(spec, inputs, signature)
        self._check_tokens(spec, inputs[spec.input], vocabulary)
        longest = signature.axes[spec.length_axis].hi
        self._check_bounds("position", inputs[spec.position], spec.max_context)
        self._check_bounds("last", inputs[spec.last], longest)
        self._check_buckets(spec, signature)

    def _check_axes(self, spec: GenerationSpec, signature: Signature) -> None:
        context = signature.axes.get(spec.context_axis or "")
        if spec.length_axis != signature.length_axis:
            text = "{!r} isn't the length_axis".format(shorten(spec.length_axis))
            self.add("generation-axes", "length_axis", text)
        if spec.context_axis is None:
            if not 1 <= spec.max_context <= MAX_SIZE:
                text = "is {}, must be 1 to {}".format(spec.max_context, MAX_SIZE)
                self.add("generation-axes", "max_context", text)
        elif context is None or spec.context_axis == spec.length_axis:
            text = "{!r} isn't another one of the axes".format(shorten(spec.context_axis))
            self.add("generation-axes", "context_axis", text)
        elif spec.max_context != context.hi:
            text = "is {}, but the axis {!r} reaches {}"
            text = text.format(spec.max_context, spec.context_axis, context.hi)
            self.add("generation-axes", "max_context", text)

    def _check_source(
        self, spec: GenerationSpec, inputs: Dict[str, TensorSpec], signature: Signature
    ) -> None:
        rows = inputs[spec.cross[0]].shape[0] if inputs[spec.cross[0]].shape else None
        is_sum = isinstance(rows, str) and rows not in signature.axes
        if is_sum or rows in (spec.length_axis, spec.context_axis):
            text = "{!r} can't have the size {!r} first".format(spec.cross[0], rows)
            self.add("generation-shape", "cross", text)
        self._check_rows("cross", [inputs[name] for name in spec.cross], rows, "the source's size")
        path = spec.encoder + "/" + MANIFEST_NAME
        if path not in self.files:
            text = "{!r} isn't listed in files".format(shorten(path))
            self.add("generation-encoder", "encoder", text)
        if len(spec.start) >= spec.max_context:
            text = "has {} tokens, the context {}".format(len(spec.start), spec.max_context)
            self.add("generation-tokens", "start", text)
        whole = signature.axes.get(rows) if isinstance(rows, str) else None
        for index, bucket in enumerate(signature.buckets):
            if whole is None or not isinstance(rows, str):
                continue
            if rows in bucket.padded(signature.length_axis):
                text = "bucket {} pads the source, which has no mask".format(index)
                self.add("generation-buckets", "cross", text)
            if whole.lo not in bucket.axes[rows] or whole.hi not in bucket.axes[rows]:
                text = "bucket {} doesn't take every source of {}".format(index, whole)
                self.add("generation-buckets", "cross", text)

    def _check_states(
        self, spec: GenerationSpec, caches: Sequence[TensorSpec]
    ) -> Sequence[TensorSpec]:
        """The caches with rows; the others must be float32 of fixed sizes, and one has to be there."""
        rows = [item for item in caches if spec.has_rows(item)]
        states = [item for item in caches if not spec.has_rows(item)]
        if not states:
            text = "all have the context's axis, so the kind must be " + CAUSAL_LM
            self.add("generation-states", "caches", text)
        for item in states:
            fixed = bool(item.shape) and all(isinstance(dim, int) for dim in item.shape)
            if item.dtype != "float32" or not fixed:
                text = (
                    "{!r} must be float32 of fixed sizes, or of the context's axis and such sizes"
                )
                self.add("generation-shape", "caches", text.format(item.name))
        return rows

    def _check_rows(
        self,
        key: str,
        items: Sequence[TensorSpec],
        rows: Dim,
        what: str,
        dtypes: Sequence[str] = ("float32",),
    ) -> None:
        """Each item must be of ``dtypes`` and ``rows`` by fixed sizes."""
        for item in items:
            fixed = item.shape[1:]
            if not fixed or any(not isinstance(dim, int) for dim in fixed):
                text = "{!r} must have {} first and fixed sizes behind it"
                self.add("generation-shape", key, text.format(item.name, what))
                continue
            dtype = item.dtype if item.dtype in dtypes else dtypes[0]
            self._check_shape(key, item, dtype, (rows, *fixed))

    def _check_shape(self, key: str, item: TensorSpec, dtype: str, shape: Tuple[Dim, ...]) -> None:
        if (item.dtype, item.shape) != (dtype, shape):
            expected = "{}[{}]".format(
                dtype, ", ".join("null" if dim is None else str(dim) for dim in shape)
            )
            self.add("generation-shape", key, "{!r} must be {}".format(item.name, expected))

    def _check_tokens(self, spec: GenerationSpec, item: TensorSpec, vocabulary: int) -> None:
        bounds = item.bounds
        if bounds is None or bounds[0] > 0 or bounds[1] < vocabulary - 1:
            text = "the bounds of {!r} must hold every token, 0..{}"
            self.add("generation-tokens", "input", text.format(item.name, vocabulary - 1))
        if item.pad != spec.pad:
            text = "is {}, but the input {!r} is padded with {}"
            self.add("generation-tokens", "pad", text.format(spec.pad, item.name, item.pad))
        tokens = [("pad", spec.pad)]
        for key in ("eos", "start", "suppress", "suppress_first"):
            tokens.extend((key, token) for token in getattr(spec, key))
        if spec.bos is not None:
            tokens.append(("bos", spec.bos))
        for key, token in tokens:
            if not 0 <= token < vocabulary:
                text = "{} isn't a token, 0..{}".format(token, vocabulary - 1)
                self.add("generation-tokens", key, text)

    def _check_bounds(self, key: str, item: TensorSpec, size: int) -> None:
        if item.bounds is not None and not item.bounds[0] <= 0 <= size - 1 <= item.bounds[1]:
            text = "the bounds of {!r} must be null or hold 0..{}".format(item.name, size - 1)
            self.add("generation-bounds", key, text)

    def _check_buckets(self, spec: GenerationSpec, signature: Signature) -> None:
        length, context = spec.length_axis, spec.context_axis
        if spec.lookup > 1:
            self._check_lookup(spec, signature)
        steps = [item for item in signature.buckets if item.axes[length].hi == 1]
        if context is None:
            if not steps:
                self.add("generation-buckets", "length_axis", "no bucket takes one token")
            if signature.axes[length].hi > spec.max_context:
                text = "a run can have {} tokens, a text {}"
                text = text.format(signature.axes[length].hi, spec.max_context)
                self.add("generation-buckets", "max_context", text)
            return
        whole = signature.axes[context]
        if not any(whole.lo in b.axes[context] and whole.hi in b.axes[context] for b in steps):
            text = "no bucket takes one token at every context {}".format(whole)
            self.add("generation-buckets", "length_axis", text)
        for index, bucket in enumerate(signature.buckets):
            if context in bucket.padded(signature.length_axis):
                text = "bucket {} pads the context, which caches don't bear".format(index)
                self.add("generation-buckets", "context_axis", text)
            tokens, hint = _computed_length(bucket, length), bucket.axes[context].hint or 0
            if hint < tokens:
                text = "bucket {}: the context's hint {} is less than {} tokens"
                self.add("generation-buckets", "context_axis", text.format(index, hint, tokens))
            if bucket.axes[context].hi < bucket.axes[length].hi:
                text = "bucket {} takes more tokens, {}, than context, {}"
                text = text.format(index, bucket.axes[length].hi, bucket.axes[context].hi)
                self.add("generation-buckets", "context_axis", text)

    def _check_lookup(self, spec: GenerationSpec, signature: Signature) -> None:
        """Runs that give several rows of logits, and others, have buckets of their own."""
        spans = [bucket.axes[spec.length_axis] for bucket in signature.buckets]
        if not any((span.lo, span.hi, span.step) == (2, spec.lookup, 1) for span in spans):
            text = "no bucket takes 2 to {} tokens".format(spec.lookup)
            self.add("generation-lookup", "lookup", text)
        if spec.kind == SEQ2SEQ:
            self.add("generation-lookup", "lookup", "a model with an encoder has no such runs")
        for index, span in enumerate(spans):
            if span.hi > 1 and span.lo <= spec.lookup and (span.lo == 1 or span.hi > spec.lookup):
                text = "bucket {} takes {} to {} tokens, which give other numbers of logits"
                self.add("generation-lookup", "lookup", text.format(index, span.lo, span.hi))


def _computed_length(bucket: BucketSpec, axis: str) -> int:
    """The length that a bucket runs at when it is warmed up."""
    extent = bucket.axes[axis]
    return extent.hi if bucket.mode == "pad" else extent.hint or extent.hi


def _sensible(key: str, value: float) -> bool:
    if key == "top_p":
        return 0 < value <= 1
    return value >= 0 if key == "temperature" else value > 0
