"""``Model.transcribe``: a recording in, its text and the times of its parts out."""

from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

from ..base.errors import InputError
from ..format.speech_schema import CtcSpec, SpeechSpec
from ..generation.session import Session, open_session
from ..text.encoder import open_tokenizer_file
from .ctc import find_tokens, run_ctc
from .features import open_log_mel
from .recording import read_samples
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
    spec = model.manifest.speech
    if spec is None:
        raise InputError(
            "{}: the model takes no recordings".format(model.manifest.name),
            "build Whisper, or a model of samples with a CTC head, from its folder with a preprocessor_config.json",
        )
    recording = read_samples(samples, sampling_rate, spec.sampling_rate)
    tokenizer = None if spec.tokenizer is None else open_tokenizer_file(model, spec.tokenizer)
    if spec.ctc is not None:
        return _read_whole(model, spec, spec.ctc, recording, tokenizer, choices, on_segment)
    assert spec.windows is not None and spec.log_mel is not None
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
    ctc: CtcSpec,
    recording: "NDArray[np.float32]",
    tokenizer: Any,
    choices: Choices,
    on_segment: Optional[Callable[[Segment], Any]],
) -> Transcript:
    """The text of a recording in one run, as one segment."""
    values = choices._asdict().items()
    given = [key for key, value in values if value is not None and value is not False]
    if given:
        raise InputError("`{}` is for models with a decoder, which this isn't".format(given[0]))
    tokens = find_tokens(run_ctc(model, spec, ctc, recording), ctc.blank)
    # The tokenizer's own special tokens are part of the text, as in transformers.
    text = (
        None if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=False).strip()
    )
    segment = Segment(0.0, len(recording) / spec.sampling_rate, text, tokens)
    if on_segment is not None:
        on_segment(segment)
    return Transcript(text, [segment], None)
