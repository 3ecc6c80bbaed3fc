"""``Model.transcribe``: a recording in, its text and the times of its parts out."""

from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

from ..base.errors import InputError
from ..generation.session import Session, open_session
from ..text.encoder import open_tokenizer_file
from .features import open_log_mel
from .recording import read_samples
from .windows import Choices, Span, WindowLoop

if TYPE_CHECKING:
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
            "build Whisper from its folder, with its preprocessor_config.json, for the task seq2seq-lm",
        )
    recording = read_samples(samples, sampling_rate, spec.sampling_rate)
    tokenizer = None if spec.tokenizer is None else open_tokenizer_file(model, spec.tokenizer)
    log_mel = open_log_mel(model, spec.log_mel)
    session = open_session(model, Session)
    features = log_mel.compute(recording, spec.windows.frames * spec.log_mel.hop)
    loop = WindowLoop(model, session, features, choices)

    def decode(spans: List[Span]) -> Optional[str]:
        if tokenizer is None:
            return None
        tokens = [token for span in spans for token in span.tokens]
        first = spec.windows.timestamps
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
