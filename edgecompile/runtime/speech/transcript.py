"""``Model.transcribe``: a recording in, its text and the times of its parts out."""

from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

from ..base.arguments import check_callback
from ..base.errors import InputError, OutsideBucketsError
from ..format.manifest.speech_schema import SpeechSpec
from ..format.sums import size_span
from ..generation.session import Session, open_session
from ..text.encoder import open_tokenizer_file
from .ctc import find_tokens, run_ctc
from .features import open_log_mel
from .recording import normalize, read_samples
from .windows import Choices, Span, WindowLoop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle


class Segment(NamedTuple):
    """A part of a recording.

    Attributes:
        start, end: its times in seconds.
        text: its text; None where the bundle has no tokenizer.
        tokens: its token ids, times included.
    """

    start: float
    end: float
    text: Optional[str]
    tokens: List[int]


class Transcript(NamedTuple):
    """The text of a recording.

    Attributes:
        text: the text; None where the bundle has no tokenizer.
        segments: its parts, in the order of the recording.
        language: name of the language that was given or detected; None: the model has one.
    """

    text: Optional[str]
    segments: List[Segment]
    language: Optional[str]


def transcribe(
    model: "OpenBundle",
    samples: Any,
    sampling_rate: int,
    choices: Choices,
    on_segment: Optional[Callable[[Segment], Any]] = None,
) -> Transcript:
    """See ``Model.transcribe``."""
    check_callback("on_segment", on_segment)
    spec = model.manifest.speech
    if spec is None:
        raise InputError(
            "{}: the model takes no recordings".format(model.manifest.name),
            "build Whisper, Moonshine, or a model of samples with a CTC head, from its folder with a preprocessor_config.json",
        )
    recording = read_samples(samples, sampling_rate, spec.sampling_rate)
    tokenizer = None if spec.tokenizer is None else open_tokenizer_file(model, spec.tokenizer)
    if spec.windows is None:
        return _read_whole(model, spec, recording, tokenizer, choices, on_segment)
    assert spec.log_mel is not None
    log_mel, windows = open_log_mel(model, spec.log_mel), spec.windows
    session = open_session(model, Session)
    features = log_mel.compute(recording, windows.frames * spec.log_mel.hop)
    loop = WindowLoop(model, session, features, choices)

    def decode(spans: List[Span]) -> Optional[str]:
        if tokenizer is None:
            return None
        tokens = [token for span in spans for token in span.tokens]
        first = windows.timestamps
        words = [token for token in tokens if first is None or token < first]
        text: str = tokenizer.decode(words, skip_special_tokens=True)
        return text

    spans: List[Span] = []
    segments: List[Segment] = []
    for span in loop:
        spans.append(span)
        segments.append(Segment(span.start, span.end, decode([span]), span.tokens))
        if on_segment is not None and on_segment(segments[-1]) is False:
            break
    return Transcript(decode(spans), segments, loop.language)


def _read_whole(
    model: "OpenBundle",
    spec: SpeechSpec,
    recording: "NDArray[np.float32]",
    tokenizer: Any,
    choices: Choices,
    on_segment: Optional[Callable[[Segment], Any]],
) -> Transcript:
    """The text of a recording that the model reads in one run, as one segment."""
    most = choices.max_new_tokens
    values = choices._replace(max_new_tokens=None if spec.ctc is None else most)._asdict().items()
    given = [key for key, value in values if value is not None and value is not False]
    if given:
        kind = "models with a decoder" if spec.ctc is not None else "Whisper"
        raise InputError("`{}` is for {}, which this isn't".format(given[0], kind))
    if spec.log_mel is None:
        _check_length(model.encoder or model, spec.input, len(recording))
    if spec.ctc is not None:
        tokens = find_tokens(run_ctc(model, spec, spec.ctc, recording), spec.ctc.blank)
    else:
        generation = model.manifest.generation
        assert generation is not None
        if spec.normalize:
            recording = normalize(recording)
        stream = open_session(model, Session).stream(
            {spec.input: recording[None]}, max_new_tokens=most, do_sample=False
        )
        tokens = list(stream)
        if tokens[-1] in generation.eos:
            tokens.pop()
    text = None
    if tokenizer is not None:
        # With CTC the tokenizer's own special tokens are part of the text, as in transformers.
        text = tokenizer.decode(tokens, skip_special_tokens=spec.ctc is None)
        text = text if spec.ctc is None else text.strip()
    segment = Segment(0.0, len(recording) / spec.sampling_rate, text, tokens)
    if on_segment is not None:
        on_segment(segment)
    return Transcript(text, [segment], None)


def _check_length(reader: "OpenBundle", name: str, count: int) -> None:
    """Raises OutsideBucketsError where the part that reads samples takes no recording of so many."""
    item = next(item for item in reader.manifest.inputs if item.name == name)
    dim = item.shape[1]
    lo, hi = size_span(dim, reader.manifest.axes) if isinstance(dim, str) else (dim, dim)
    if lo is not None and hi is not None and not lo <= count <= hi:
        text = "the recording has {} samples, the model takes {} to {}"
        hint = "cut the recording at pauses, or build the bundle with a larger max_length"
        raise OutsideBucketsError(
            text.format(count, lo, hi),
            hint if count > hi else "put zeros behind a recording that is as short as that",
        )
