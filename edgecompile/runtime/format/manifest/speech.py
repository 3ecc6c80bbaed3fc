"""Reads the manifest's ``speech``: how a recording becomes text."""

from typing import Dict, Mapping, Optional

from ..document import Field, is_printable, shorten
from ..dtypes import BY_NAME
from .schema import SEQ2SEQ, FileEntry, GenerationSpec, TensorSpec
from .signature import Signature
from .speech_schema import CtcSpec, LogMelSpec, SpeechSpec, WindowSpec
from .text import MAX_TOKENIZER_BYTES

MAX_RATE = 1_000_000
MAX_BINS = 4096
MAX_WINDOW = 65536
MAX_FRAMES = 1 << 24
#: Samples of a window's frames: shorter recordings are filled up to them.
MAX_SAMPLES = 1 << 26
MAX_FORCED = 64
MAX_NAMES = 4096


def read_speech(
    entry: Field,
    generation: Optional[GenerationSpec],
    signature: Signature,
    files: Mapping[str, FileEntry],
) -> Optional[SpeechSpec]:
    """The ``speech`` of a manifest; None where there is none, or a problem was noted.

    Args:
        entry: the entry of the manifest.
        generation: the generation that was read before.
        signature: the signature that was read before.
        files: the files that the manifest lists.
    """
    sound = not entry.problems.items
    if not entry.object():
        return None
    before = entry.problems.count
    tokenizer = None
    if entry.find("tokenizer"):
        tokenizer = entry.find("tokenizer").path(files)
        _check_size(entry.find("tokenizer"), files.get(tokenizer), MAX_TOKENIZER_BYTES)
    windows, ctc, whole = (entry.find(key) for key in ("windows", "ctc", "normalize"))
    if windows and ctc:
        entry.refuse("speech-kind", "must have at most one of windows and ctc")
    log_mel = entry.at("log_mel") if windows else entry.find("log_mel")
    if log_mel and not windows and not ctc:
        log_mel.refuse("speech-kind", "is for windows or ctc")
    if log_mel and whole:
        whole.refuse("speech-kind", "is for samples, not for log_mel")
    spec = SpeechSpec(
        input=entry.at("input").string() or "",
        sampling_rate=entry.at("sampling_rate").within(1, MAX_RATE, "speech-numbers") or 1,
        log_mel=_read_log_mel(log_mel.object(), files, bool(ctc)) if log_mel else None,
        windows=_read_windows(windows.object()) if windows else None,
        tokenizer=tokenizer,
        normalize=bool(whole and whole.boolean()),
        ctc=_read_ctc(ctc.object()) if ctc else None,
    )
    if spec.windows is not None and spec.log_mel is not None:
        samples = spec.windows.frames * spec.log_mel.hop
        if samples > MAX_SAMPLES:
            text = "{} frames have {} samples, at most {}"
            text = text.format(spec.windows.frames, samples, MAX_SAMPLES)
            windows.find("frames").refuse("speech-numbers", text)
    if entry.problems.count == before and sound:
        if spec.ctc is not None:
            _check_ctc(spec, spec.ctc, entry, generation, signature)
        elif generation is None or generation.kind != SEQ2SEQ:
            entry.refuse("speech-input", "no encoder reads a recording")
        elif spec.input != generation.source:
            text = "{!r} isn't the source {!r}".format(shorten(spec.input), generation.source)
            entry.find("input").refuse("speech-input", text)
        elif spec.windows is not None:
            _check_windows(spec.windows, windows, generation, signature)
    return spec if entry.problems.count == before else None


def _check_size(field: Field, file: Optional[FileEntry], most: int) -> None:
    if file is not None and file.size > most:
        field.refuse("speech-files", "has {} bytes, at most {}".format(file.size, most))


def _read_log_mel(entry: Field, files: Mapping[str, FileEntry], tapers: bool) -> LogMelSpec:
    preemphasis = entry.at("preemphasis").number() if tapers else None
    if preemphasis is not None:
        entry.find("preemphasis").check_range(preemphasis, 0, 1, "speech-numbers")
    spec = LogMelSpec(
        filters=entry.at("filters").path(files),
        bins=entry.at("bins").within(1, MAX_BINS, "speech-numbers") or 1,
        window=entry.at("window").within(2, MAX_WINDOW, "speech-numbers") or 2,
        hop=entry.at("hop").within(1, MAX_WINDOW, "speech-numbers") or 1,
        taper=entry.at("taper").within(2, MAX_WINDOW, "speech-numbers") if tapers else None,
        preemphasis=preemphasis,
    )
    if spec.taper is not None and spec.taper > spec.window:
        text = "{} samples don't fit into the window of {}".format(spec.taper, spec.window)
        entry.find("taper").refuse("speech-numbers", text)
    file, size = files.get(spec.filters), 4 * spec.bins * (spec.window // 2 + 1)
    if file is not None and file.size != size and not entry.problems.items:
        text = "has {} bytes, must have {}".format(file.size, size)
        entry.find("filters").refuse("speech-files", text)
    return spec


def _read_windows(entry: Field) -> WindowSpec:
    def optional(key: str) -> Optional[int]:
        field = entry.find(key)
        return field.within(0, MAX_FRAMES, "speech-numbers") if field else None

    def chosen(key: str, names: Mapping[str, int]) -> Optional[str]:
        field = entry.find(key)
        return field.choice(tuple(names), "speech-tokens") if field else None

    languages, tasks = _read_names(entry.find("languages")), _read_names(entry.find("tasks"))
    forced = entry.find("forced").items(0, MAX_FORCED)
    return WindowSpec(
        frames=entry.at("frames").within(1, MAX_FRAMES, "speech-numbers") or 1,
        stride=entry.at("stride").within(1, MAX_FRAMES, "speech-numbers") or 1,
        timestamps=optional("timestamps"),
        max_length=entry.at("max_length").within(1, MAX_FRAMES, "speech-numbers") or 1,
        max_initial=optional("max_initial"),
        forced=tuple(item.integer() if item.given else None for item in forced),
        previous=optional("previous"),
        max_new_tokens=optional("max_new_tokens") or None,
        languages=languages,
        tasks=tasks,
        language=chosen("language", languages),
        task=chosen("task", tasks),
    )


def _read_ctc(entry: Field) -> CtcSpec:
    blank = entry.at("blank").integer()
    return CtcSpec(entry.at("output").string() or "", 0 if blank is None else blank)


def _read_names(entries: Field) -> Dict[str, int]:
    """Tokens by name."""
    result = {}
    for name, item in entries.members(0, MAX_NAMES):
        token = item.integer()
        if not (1 <= len(name) <= 200 and is_printable(name)):
            text = "{!r} must be 1 to 200 printable code points".format(shorten(name))
            item.refuse("speech-tokens", text)
        if token is not None:
            result[name] = token
    return result


def _check_windows(
    windows: WindowSpec, field: Field, generation: GenerationSpec, signature: Signature
) -> None:
    """Holds their tokens against the generation."""
    vocabulary = signature.outputs[0].shape[1]
    assert isinstance(vocabulary, int)
    tokens = [("forced", token) for token in windows.forced]
    tokens += [("previous", windows.previous), ("timestamps", windows.timestamps)]
    for key in ("languages", "tasks"):
        tokens += [(key, token) for token in getattr(windows, key).values()]
    for key, token in tokens:
        if token is not None and not 0 <= token < vocabulary:
            text = "{} isn't a token, 0..{}".format(token, vocabulary - 1)
            field.find(key).refuse("speech-tokens", text)
    if windows.tasks and "transcribe" not in windows.tasks:
        field.find("tasks").refuse("speech-tokens", "has no 'transcribe'")
    if windows.timestamps is not None and (windows.timestamps < 1 or len(generation.eos) != 1):
        text = "need a token before the first, and one token in generation.eos"
        field.find("timestamps").refuse("speech-tokens", text)
    if len(windows.forced) + 4 > generation.max_context:
        text = "a text begins with {} tokens, the context has {}"
        text = text.format(len(windows.forced) + 4, generation.max_context)
        field.find("forced").refuse("speech-tokens", text)


def _check_ctc(
    spec: SpeechSpec,
    ctc: CtcSpec,
    entry: Field,
    generation: Optional[GenerationSpec],
    signature: Signature,
) -> None:
    """Holds it against the inputs and outputs."""
    if generation is not None:
        entry.find("ctc").refuse("speech-kind", "a language model has no ctc")
        return
    inputs = {item.name: item for item in signature.inputs}
    main = inputs.get(spec.input)
    more = () if spec.log_mel is None else (spec.log_mel.bins,)
    if (
        main is None
        or main.dtype != "float32"
        or (len(main.shape[:2]), main.shape[2:]) != (2, more)
    ):
        wanted = "samples" if spec.log_mel is None else "frames, {}".format(*more)
        text = "{!r} isn't an input, float32 [batch, {}]".format(shorten(spec.input), wanted)
        entry.find("input").refuse("speech-input", text)
        return
    for item in inputs.values():
        if item is not main and not _is_mask(item, main):
            text = "nothing says what the input {!r} is".format(item.name)
            entry.find("input").refuse("speech-input", text)
    output = next((item for item in signature.outputs if item.name == ctc.output), None)
    field = entry.find("ctc")
    size = output.shape[2] if output is not None and len(output.shape) == 3 else None
    if output is None or output.dtype != "float32" or not isinstance(size, int):
        text = "{!r} isn't an output, float32 [batch, frames, vocabulary]"
        field.find("output").refuse("speech-input", text.format(shorten(ctc.output)))
    elif not 0 <= ctc.blank < size:
        text = "{} isn't a token, 0..{}".format(ctc.blank, size - 1)
        field.find("blank").refuse("speech-tokens", text)


def _is_mask(item: TensorSpec, main: TensorSpec) -> bool:
    bounds = item.bounds
    ones = bounds is None or bounds[0] <= 1 <= bounds[1]
    return item.shape == main.shape[:2] and BY_NAME[item.dtype].kind in "biu" and ones
