"""The manifest as named tuples, which are quick to define; FORMAT.md is normative.

``to_json()`` gives plain dicts whose order is fixed, so equal manifests are equal bytes. Construction checks
nothing: ``parse.parse_manifest`` does, and every writer sends its bytes through it.
"""

import json
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from ..dtypes import Number
from .policy_schema import PolicySpec
from .speech_schema import SpeechSpec

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
#: An exact bucket whose lengths go in steps is "stepped" in a manifest: readers from before refuse it.
STEPPED = "stepped"
MODES = ("exact", "pad", STEPPED)
AOTI_CPU = "aoti-cpu"
TENSORRT = "tensorrt"
TORCH = "torch"
TRITON = "triton"
#: Those that run on a GPU.
GPU_BACKENDS = (TENSORRT, TRITON)
#: Kinds of generation: of a text alone, and of one that goes on from a source.
CAUSAL_LM = "causal-lm"
#: One that keeps states of a fixed size, too.
RECURRENT_LM = "recurrent-lm"
SEQ2SEQ = "seq2seq"

#: Tokens of the longest run that gives logits behind each of its tokens.
MAX_LOOKUP = 8
#: What of a tokenizer's answer an input may get, and what may be done to a text before.
TEXT_PARTS = ("ids", "attention_mask", "type_ids")
TEXT_STEPS = ("strip", "lower")

Dim = Union[int, str, None]

NOTHING: Mapping[str, Any] = MappingProxyType({})


def plain(value: Any) -> Any:
    """``value`` as plain JSON values: what its ``to_json`` gives; named tuples are objects, other tuples lists."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class TensorSpec(NamedTuple):
    """One input or output. ``shape`` items: a fixed size, the name of an axis, a sum of axes
    (:mod:`.sums`), or (in outputs) None for a size that varies in another way.

    ``pad`` is the value that fills an input in pad mode (None: it can't be padded), ``bounds`` the
    inclusive range of allowed values (None: any), and ``default`` the value that all of an input has
    where it isn't given (None: it must be given); outputs have none of these. An item of ``reach``
    is the sum of axes that a bound follows in each run; ``bounds`` then holds the widest.
    """

    name: str
    dtype: str
    shape: Tuple[Dim, ...]
    pad: Optional[Number] = None
    bounds: Optional[Tuple[Number, Number]] = None
    default: Optional[Number] = None
    reach: Tuple[Optional[str], Optional[str]] = (None, None)

    def to_json(self, is_input: bool) -> Dict[str, Any]:
        """The manifest's entry; inputs carry ``pad`` and ``bounds``, and a ``default`` if any."""
        entry: Dict[str, Any] = {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
        }
        if is_input:
            entry["pad"] = self.pad
            ends = self.bounds
            entry["bounds"] = ends and [text or end for text, end in zip(self.reach, ends)]
            if self.default is not None:
                entry["default"] = self.default
        return entry


class Extent(NamedTuple):
    """The sizes that an axis may have: ``lo``, ``lo + step``, … ``hi``.

    Buckets alone have a ``hint``, the size that they are tuned for, and a ``step`` other than 1.
    """

    lo: int
    hi: int
    hint: Optional[int] = None
    step: int = 1

    def __contains__(self, size: int) -> bool:  # type: ignore[override]
        return self.lo <= size <= self.hi and (size - self.lo) % self.step == 0

    def __str__(self) -> str:
        if self.lo == self.hi:
            return str(self.lo)
        text = "{}..{}".format(self.lo, self.hi)
        return text if self.step == 1 else "{} in steps of {}".format(text, self.step)

    def below(self, size: int) -> int:
        """The largest of the sizes up to ``size``; ``lo`` if that is larger."""
        size = min(max(size, self.lo), self.hi)
        return size - (size - self.lo) % self.step

    def to_json(self) -> Dict[str, int]:
        """{"lo", "hi"}, "hint" if there is one, and "step" if it isn't 1."""
        value = {"lo": self.lo, "hi": self.hi}
        if self.hint is not None:
            value["hint"] = self.hint
        if self.step != 1:
            value["step"] = self.step
        return value


class BucketSpec(NamedTuple):
    """The sizes that one program serves; see FORMAT.md for how a bucket is chosen.

    ``pad_axes`` are the axes that a bucket of mode pad fills up to their ``hi``, where that is more
    than the length axis; empty means the length axis alone. An exact bucket has none. ``mode``
    is ``exact`` or ``pad``; a bucket that a manifest calls ``stepped`` is exact.
    """

    mode: str
    axes: Mapping[str, Extent]
    pad_axes: Tuple[str, ...] = ()

    def contains(self, sizes: Mapping[str, int]) -> bool:
        """Whether every axis' size is in this bucket."""
        # Compared here, as it is asked for each run: `in` is one more call.
        return all(
            extent.lo <= sizes[axis] <= extent.hi and (sizes[axis] - extent.lo) % extent.step == 0
            for axis, extent in self.axes.items()
        )

    def largest(self) -> Dict[str, int]:
        """The upper end of every axis."""
        return {axis: extent.hi for axis, extent in self.axes.items()}

    def padded(self, length_axis: Optional[str]) -> Tuple[str, ...]:
        """The axes that inputs are filled up along; () in exact mode."""
        if self.mode != "pad":
            return ()
        return self.pad_axes or (() if length_axis is None else (length_axis,))

    def __str__(self) -> str:
        ranges = ", ".join("{} {}".format(axis, item) for axis, item in self.axes.items())
        padded = " ({})".format(", ".join(self.pad_axes)) if self.pad_axes else ""
        return "{}{} {}".format(self.mode, padded, ranges)

    def to_json(self, length_axis: Optional[str] = None) -> Dict[str, Any]:
        """{"mode", "axes"}, and "pad_axes" where it is more than ``length_axis``."""
        in_steps = any(extent.step != 1 for extent in self.axes.values())
        mode = STEPPED if in_steps else self.mode
        entry: Dict[str, Any] = {"mode": mode, "axes": plain(self.axes)}
        if self.pad_axes not in ((), (length_axis,)):
            entry["pad_axes"] = list(self.pad_axes)
        return entry


class Tolerance(NamedTuple):
    """Agreement means |got - want| <= atol + rtol * max|want|, per output."""

    atol: float
    rtol: float

    def limit(self, scale: float) -> float:
        """The largest allowed difference for an output whose largest magnitude is ``scale``."""
        return self.atol + self.rtol * scale


class GpuSpec(NamedTuple):
    """Requirements of the programs of the backend "triton" of a GPU, and how they compute.

    ``compute_capabilities`` such as "8.7" have machine code; ``ptx`` is the least one for which there
    is code that the driver compiles, or None. ``driver`` is CUDA's number of the oldest driver, 12060
    for 12.6. ``precision`` names the weights. ``tolerance`` and ``min_cosine`` judge golden vectors;
    ``padding`` tells whether padding was verified to change nothing, ``checks`` what else was done.
    ``graphs`` is false where programs read numbers from the GPU in their middle: no CUDA graph holds
    their runs, and values decide about sizes. ``cublaslt`` is true where programs have products that
    NVIDIA's cuBLASLt may compute, if ``tune`` found it faster.
    """

    compute_capabilities: Tuple[str, ...]
    ptx: Optional[str]
    driver: int
    precision: str
    tolerance: Tolerance
    min_cosine: Optional[float] = None
    padding: bool = False
    checks: Tuple[str, ...] = ()
    graphs: bool = True
    cublaslt: bool = False

    def to_json(self) -> Dict[str, Any]:
        """The manifest's entry; what older loaders don't know is there only where it isn't as usual."""
        usual = {"graphs": True, "cublaslt": False}
        return {k: plain(v) for k, v in self._asdict().items() if k not in usual or v != usual[k]}


class Variant(NamedTuple):
    """One instruction set of one architecture, or one kind of GPU.

    For the backend "aoti-cpu" ``programs`` holds one library per bucket; for "tensorrt" ``recipe``
    is the path of what the device builds its engine from; for "torch" there are ``programs``, and
    ``torch`` is the version that they are for; for "triton" ``programs`` and what they need of a GPU.
    Of the latter ``alternatives`` may hold, for each bucket, programs that compute the same with other
    tiles: the device may have measured which one is the fastest.
    Those that don't belong to the backend are empty, all of them where it is another one: this
    runtime can't run it and says so.
    """

    name: str
    arch: str
    backend: str
    requires: Tuple[str, ...]
    glibc: Optional[str]
    rank: int
    runtime: str = ""
    programs: Tuple[str, ...] = ()
    recipe: str = ""
    torch: str = ""
    gpu: Optional[GpuSpec] = None
    alternatives: Tuple[Tuple[str, ...], ...] = ()

    @property
    def tunable(self) -> bool:
        """Whether there is anything that ``tune`` may have chosen: a program, or what cuBLASLt computes."""
        return any(self.alternatives) or (self.gpu is not None and self.gpu.cublaslt)

    def files(self) -> List[str]:
        """Every program's path."""
        return [*self.programs, *(path for item in self.alternatives for path in item)]

    def to_json(self) -> Dict[str, Any]:
        """The manifest's entry."""
        entry: Dict[str, Any] = {
            "name": self.name,
            "arch": self.arch,
            "backend": self.backend,
            "requires": list(self.requires),
            "glibc": self.glibc,
        }
        if self.backend == TENSORRT:
            entry["recipe"] = self.recipe
        elif self.backend == TORCH:
            entry.update(torch=self.torch, programs=list(self.programs))
        else:
            entry.update(runtime=self.runtime, programs=list(self.programs))
            if self.alternatives:
                entry["alternatives"] = plain(self.alternatives)
            if self.gpu is not None:
                entry["gpu"] = plain(self.gpu)
        entry["rank"] = self.rank
        return entry


class GoldenCase(NamedTuple):
    """A recorded run of eager for one bucket; ``file`` is an .npz with in.* and out.* arrays."""

    bucket: int
    case: str
    file: str


class FileEntry(NamedTuple):
    """Size in bytes and lower-case hex SHA-256 of one file."""

    size: int
    sha256: str


class BatchSpec(NamedTuple):
    """Programs that run a token each of 2 to ``texts`` texts: their paths by the variant's name."""

    texts: int
    programs: Mapping[str, str]


class GenerationSpec(NamedTuple):
    """The calls of a generative bundle's programs: the names of inputs, output and axes.

    ``eos``, ``bos`` and ``pad`` are token ids; ``defaults`` has what ``Model.generate`` takes where
    its caller says nothing: do_sample, temperature, top_k, top_p, repetition_penalty and
    max_new_tokens, each optional.

    Of the kind "recurrent-lm" some ``caches`` are states of a fixed size, and ``context_axis`` is None
    where all of them are.

    Where ``lookup`` isn't 1, runs of 2 to so many tokens give logits behind each of their tokens.

    The others are for the kind "seq2seq": ``encoder`` is the folder of the bundle that makes the
    inputs ``cross`` of its input ``source``, ``start`` what every text begins with. Tokens of
    ``suppress`` are never chosen, those of ``suppress_first`` not as the first one.

    ``batch`` is what runs several texts at once; None: nothing does. With ``masked_head`` programs for CPUs can
    leave out logits that nobody reads. ``windows`` has the sliding window of each of ``caches`` that has one.
    """

    input: str
    position: str
    last: str
    logits: str
    length_axis: str
    context_axis: Optional[str]
    max_context: int
    caches: Tuple[str, ...]
    eos: Tuple[int, ...]
    bos: Optional[int]
    pad: int
    defaults: Mapping[str, Any] = NOTHING
    kind: str = CAUSAL_LM
    encoder: str = ""
    source: str = ""
    cross: Tuple[str, ...] = ()
    start: Tuple[int, ...] = ()
    suppress: Tuple[int, ...] = ()
    suppress_first: Tuple[int, ...] = ()
    lookup: int = 1
    batch: Optional[BatchSpec] = None
    masked_head: bool = False
    windows: Mapping[str, int] = NOTHING

    def has_rows(self, item: "TensorSpec") -> bool:
        """Whether one of ``caches`` has a row for each token, so that it isn't a state of a fixed size."""
        return self.context_axis is not None and item.shape[:1] == (self.context_axis,)

    def to_json(self) -> Dict[str, Any]:
        """The manifest's entry."""
        whole = {"kind": self.kind, **plain(self._asdict())}
        if self.kind != SEQ2SEQ:
            for key in ("encoder", "source", "cross", "start", "suppress", "suppress_first"):
                del whole[key]
        if self.lookup == 1:
            del whole["lookup"]
        if self.batch is None:
            del whole["batch"]
        if not self.masked_head:
            del whole["masked_head"]
        if not self.windows:
            del whole["windows"]
        return whole


class TextSpec(NamedTuple):
    """The conversion of texts to inputs: ``tokenizer`` is the path of a tokenizer.json.

    ``max_length`` is in tokens, special ones included; ``pad_id`` fills a row behind its tokens;
    ``inputs`` has one of ``TEXT_PARTS`` by input; ``prepare`` is done to a text first, in order.
    ``prompts`` are texts by name that go before a text, ``default_prompt`` unless another is named.
    """

    tokenizer: str
    max_length: int
    pad_id: int
    inputs: Mapping[str, str]
    prepare: Tuple[str, ...] = ()
    prompts: Mapping[str, str] = NOTHING
    default_prompt: Optional[str] = None


class StateSpec(NamedTuple):
    """An output that is an input of the next run of a stream.

    ``start`` are the input's values in the first run, in row-major order; one stands for all of them, and
    None for zeros.
    """

    output: str
    input: str
    start: Optional[Tuple[Number, ...]] = None

    def to_json(self) -> Dict[str, Any]:
        """The manifest's entry, with a ``start`` if any."""
        entry: Dict[str, Any] = {"output": self.output, "input": self.input}
        if self.start is not None:
            entry["start"] = list(self.start)
        return entry


class Manifest(NamedTuple):
    """The whole manifest. ``plan`` and ``expected`` are free-form JSON objects.

    ``generation`` is None where the model is no language model, ``state`` empty where no output is the next
    run's input, ``policy`` None where the model doesn't act, ``speech`` None where it takes no recordings.
    """

    name: str
    precision: str
    inputs: Tuple[TensorSpec, ...]
    outputs: Tuple[TensorSpec, ...]
    axes: Mapping[str, Extent]
    length_axis: Optional[str]
    buckets: Tuple[BucketSpec, ...]
    variants: Tuple[Variant, ...]
    probes: Mapping[str, str]
    weights: Mapping[str, str]
    golden: Tuple[GoldenCase, ...]
    tolerance: Tolerance
    files: Mapping[str, FileEntry]
    built_by: Mapping[str, str] = NOTHING
    plan: Mapping[str, Any] = NOTHING
    expected: Mapping[str, Any] = NOTHING
    generation: Optional[GenerationSpec] = None
    format_version: int = FORMAT_VERSION
    text: Optional[TextSpec] = None
    labels: Mapping[str, Tuple[str, ...]] = NOTHING
    ranges: Mapping[str, Tuple[Tuple[float, ...], Tuple[float, ...]]] = NOTHING
    state: Tuple[StateSpec, ...] = ()
    policy: Optional[PolicySpec] = None
    speech: Optional[SpeechSpec] = None

    def padded_axes(self) -> Tuple[str, ...]:
        """The axes that any bucket pads, in the order of ``axes``."""
        padded = {axis for item in self.buckets for axis in item.padded(self.length_axis)}
        return tuple(axis for axis in self.axes if axis in padded)

    def with_room(self, bucket: BucketSpec, sizes: Mapping[str, int]) -> Dict[str, int]:
        """Sizes of a bucket, of a generative model with at least as much context as tokens."""
        result = dict(sizes)
        if self.generation is not None:
            length, context = self.generation.length_axis, self.generation.context_axis
            tokens = bucket.axes[length].hi if bucket.mode == "pad" else sizes[length]
            if context is not None:
                result[context] = max(sizes[context], tokens)
        return result

    def varying_axes(self) -> Tuple[str, ...]:
        """The axes of more than one size, the length axis first, the others as in ``axes``."""
        names = [axis for axis, extent in self.axes.items() if extent.lo < extent.hi]
        return tuple(sorted(names, key=lambda axis: axis != self.length_axis))

    def to_json(self) -> Dict[str, Any]:
        """The manifest as plain JSON values, in the order of FORMAT.md."""
        generation = {} if self.generation is None else {"generation": self.generation.to_json()}
        return {
            "format_version": self.format_version,
            "name": self.name,
            "built_by": dict(sorted(self.built_by.items())),
            "precision": self.precision,
            "inputs": [item.to_json(True) for item in self.inputs],
            "outputs": [item.to_json(False) for item in self.outputs],
            "axes": plain(self.axes),
            "length_axis": self.length_axis,
            "buckets": [item.to_json(self.length_axis) for item in self.buckets],
            "variants": plain(self.variants),
            "probes": dict(sorted(self.probes.items())),
            "weights": dict(sorted(self.weights.items())),
            "golden": plain(self.golden),
            "tolerance": plain(self.tolerance),
            "plan": dict(self.plan),
            "expected": dict(self.expected),
            **generation,
            **({} if self.text is None else {"text": plain(self.text)}),
            **({"labels": plain(self.labels)} if self.labels else {}),
            **({"ranges": plain(self.ranges)} if self.ranges else {}),
            **({"state": plain(self.state)} if self.state else {}),
            **({} if self.policy is None else {"policy": self.policy.to_json()}),
            **({} if self.speech is None else {"speech": self.speech.to_json()}),
            "files": plain(dict(sorted(self.files.items()))),
        }

    def to_bytes(self) -> bytes:
        """The bytes of manifest.json: deterministic, indented, ASCII, one final newline.

        Raises:
            ValueError: ``plan`` or ``expected`` holds a NaN or an infinity.
        """
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=True, allow_nan=False)
        return text.encode("ascii") + b"\n"
