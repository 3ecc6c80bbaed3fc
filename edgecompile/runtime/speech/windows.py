"""Long recordings in windows: each begins where the times in the text of the one before end.

The loop is that of the Hugging Face library for Whisper with greedy choices: the same windows, tokens and times.
"""

from typing import TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from ..base.errors import ContextLengthError, InputError
from ..format.document import shorten
from ..format.manifest.schema import GenerationSpec
from ..format.manifest.speech_schema import SpeechSpec
from ..generation.options import Options
from ..generation.request import make_generation_request
from ..generation.sampling import Sampler, Sampling
from ..generation.session import Session
from ..generation.sources import read_source
from ..generation.stream import TokenStream
from .timestamps import TimestampChooser

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle


class Choices(NamedTuple):
    """The options of a transcription, as the caller gives them; None: the bundle's default."""

    timestamps: Optional[bool] = None
    language: Optional[str] = None
    task: Optional[str] = None
    max_new_tokens: Optional[int] = None
    condition_on_prev_tokens: bool = False


class Span(NamedTuple):
    """A part of the text: its times in seconds, and its tokens, times included."""

    start: float
    end: float
    tokens: List[int]


class WindowLoop:
    """The windows of one recording.

    Attributes:
        language: Name of the language that was given or detected; None: the model has one.
    """

    def __init__(
        self,
        bundle: "OpenBundle",
        session: Session,
        features: "NDArray[np.float32]",
        choices: Choices,
    ) -> None:
        """``features`` are those of the whole recording, [bins, frames].

        Raises:
            InputError: a choice doesn't go with the model, or with a recording of this length.
        """
        generation, spec = bundle.manifest.generation, bundle.manifest.speech
        assert generation is not None and bundle.encoder is not None
        assert spec is not None and spec.windows is not None and spec.log_mel is not None
        self._manifest, self._encoder = bundle.manifest, bundle.encoder
        self._generation: GenerationSpec = generation
        self._spec: SpeechSpec = spec
        self._session = session
        self._features, self._choices = features, choices
        windows = self._windows = spec.windows
        self._log_mel = spec.log_mel
        self._frames = features.shape[1]
        self._seconds = windows.stride * spec.log_mel.hop / spec.sampling_rate
        named = self._known("language", choices.language, windows.languages) or windows.language
        self.language = None if named is None else self._language_of(windows.languages[named])
        self._task = self._known("task", choices.task, windows.tasks) or windows.task
        self._timed = self._takes_times(choices.timestamps)
        if not isinstance(choices.condition_on_prev_tokens, bool):
            raise _not_bool("condition_on_prev_tokens", choices.condition_on_prev_tokens)

    def _known(self, key: str, name: Optional[str], names: Any) -> Optional[str]:
        if name is None:
            return None
        if not isinstance(name, str) or name.lower() not in names:
            text = "`{}` is {}, {}".format(key, shorten(repr(name), 80), _list(names))
            raise InputError(text)
        return name.lower()

    def _takes_times(self, asked: Optional[bool]) -> bool:
        if asked is not None and not isinstance(asked, bool):
            raise _not_bool("timestamps", asked)
        windows = self._windows
        length = self._frames > windows.frames
        if windows.timestamps is None and (asked or length):
            cause = "the recording is longer than {:g} s".format(
                windows.frames * self._log_mel.hop / self._spec.sampling_rate
            )
            raise InputError(
                "the model has no timestamps, and {}".format(
                    cause if length else "`timestamps` is True"
                ),
                "a folder's generation_config.json names them: no_timestamps_token_id",
            )
        if length and asked is False:
            raise InputError(
                "`timestamps` is False, but a long recording is cut at them",
                "leave `timestamps` out",
            )
        return windows.timestamps is not None if asked is None else asked

    def __iter__(self) -> "Iterator[Span]":
        """The spans of all windows, each as soon as its window is done."""
        generation, windows = self._generation, self._windows
        begun, seek, most = self._begin(), 0, windows.max_length
        spans: List[Span] = []
        while seek < self._frames:
            taken = min(self._frames - seek, windows.frames)
            prompt = begun
            more = self._choices.condition_on_prev_tokens and spans
            if more:
                prompt = self._previous(spans) + begun
            context = generation.max_context
            most = min(most + min(context // 2 - 1, len(prompt)), context)
            count = self._count(len(prompt), most)
            if more:
                prompt = [token for token in prompt if token != generation.pad]
            tokens = self._write(seek, prompt, count)
            parts, ahead = self._split(tokens, taken, seek * self._seconds / windows.stride)
            spans += parts
            yield from parts
            seek += ahead

    def _source(self, seek: int) -> Any:
        """The encoder's input for the window at a frame, zeros behind the recording's end."""
        frames = self._windows.frames
        piece = self._features[:, seek : seek + frames]
        array = np.zeros((1, self._log_mel.bins, frames), np.float32)
        array[0, :, : piece.shape[1]] = piece
        return {self._spec.input: array}

    def _stream(self, seek: int, prompt: List[int], count: int, choose: Any) -> TokenStream:
        options = Options(do_sample=False, max_new_tokens=count)
        request = make_generation_request(self._manifest, prompt, options)
        source = read_source(self._generation, self._encoder, self._source(seek))
        return TokenStream(self._session, request._replace(source=source), choose)

    def _begin(self) -> List[int]:
        """The tokens before the text of each window: the start, the language, the task."""
        windows = self._windows
        tokens: List[Optional[int]] = [self._generation.start[0]]
        given = self.language is not None
        if not given and self._task is None:
            tokens += windows.forced
        language = None
        if self.language is not None:
            language = windows.languages[self.language]
        elif windows.languages and (len(tokens) == 1 or tokens[1] is None):
            language = self._detect()
        if language is not None:
            tokens[1:2] = [language]
        if self._task is not None:
            tokens.append(windows.tasks[self._task])
        elif given and windows.tasks and not set(tokens) & set(windows.tasks.values()):
            tokens.append(windows.tasks["transcribe"])
        if windows.timestamps is not None:
            if not self._timed and tokens[-1] != windows.timestamps - 1:
                tokens.append(windows.timestamps - 1)
            elif self._timed and tokens[-1] == windows.timestamps - 1:
                tokens.pop()
        return [token for token in tokens if token is not None]

    def _detect(self) -> int:
        """The likeliest language of the first window."""
        stream = self._stream(0, [self._generation.start[0]], 1, Sampler(Sampling(), (), 1).choose)
        while stream.run():
            pass
        logits = stream.logits
        assert logits is not None
        tokens = sorted(set(self._windows.languages.values()))
        found = tokens[int(logits[tokens].argmax())]
        self.language = self._language_of(found)
        return found

    def _language_of(self, token: int) -> str:
        """The first name of a language: its code."""
        return next(name for name, value in self._windows.languages.items() if value == token)

    def _previous(self, spans: List[Span]) -> List[int]:
        """The end of the text so far, as it goes before that of a window."""
        first, tokens = self._windows.timestamps, []
        for span in spans:
            twice = len(span.tokens) > 2 and first is not None and span.tokens[-2] >= first
            tokens += span.tokens[:-1] if twice else span.tokens
        kept = tokens[-(self._generation.max_context // 2 - 1) :]
        previous = self._windows.previous
        return kept if previous is None else [previous, *kept]

    def _count(self, begun: int, most: int) -> int:
        """The largest number of new tokens behind ``begun``, of at most ``most`` together."""
        context = self._generation.max_context
        count = self._choices.max_new_tokens
        if count is None:
            count = self._windows.max_new_tokens
        if count is None:
            return most - begun
        if isinstance(count, int) and count + begun > context:
            text = "{} tokens before the text and {} new ones don't fit into the context of {}"
            hint = "ask for at most {} new tokens".format(context - begun)
            raise ContextLengthError(text.format(begun, count, context), hint)
        return count

    def _write(self, seek: int, prompt: List[int], count: int) -> List[int]:
        """The tokens of a window, without the one that ends them."""
        generation = self._generation
        choose = Sampler(Sampling(), (), 1).choose
        if self._timed:
            windows = self._windows
            assert windows.timestamps is not None
            eos = generation.eos[0]
            choose = TimestampChooser(windows.timestamps, eos, windows.max_initial).choose
        tokens = list(self._stream(seek, prompt, count, choose))
        if tokens[-1] == generation.pad:
            surplus = tokens.count(generation.pad) - (generation.pad in generation.eos)
            tokens = tokens[: len(tokens) - surplus]
        if tokens and tokens[-1] in generation.eos:
            tokens.pop()
        return tokens

    def _split(self, tokens: List[int], taken: int, offset: float) -> Tuple[List[Span], int]:
        """The spans of a window's tokens, and how many frames later the next window begins.

        Args:
            tokens: Tokens of the window.
            taken: Number of its frames that belong to the recording.
            offset: Seconds before it.
        """
        windows, seconds = self._windows, self._seconds
        first = self._first_time()
        timed = [token >= first for token in tokens]
        ends = [at + 1 for at in range(len(tokens) - 1) if timed[at] and timed[at + 1]]
        # One time at the end says that there is no speech behind it; two, that the next window begins there.
        single = timed[-2:] == [False, True]
        # Tokens that follow no rules may name this window's own begin, from which the loop would never go on.
        if not ends or (not single and tokens[ends[-1] - 1] == first):
            last = int(taken * (seconds / windows.stride) / seconds)
            times = [token for token in tokens if token >= first]
            if times and times[-1] != first:
                last = times[-1] - first
            return [Span(offset, offset + last * seconds, tokens)], taken
        if single:
            ends.append(len(tokens))
        else:
            ends[-1] += 1
        spans, begin = [], 0
        for end in ends:
            part = tokens[begin:end]
            closing = part[-1] if end != ends[-1] or single else part[-2]
            start, stop = part[0] - first, closing - first
            spans.append(Span(offset + start * seconds, offset + stop * seconds, part))
            begin = end
        return spans, taken if single else (tokens[begin - 2] - first) * windows.stride

    def _first_time(self) -> int:
        """The first token of a time; where there is none, one that no text has."""
        first = self._windows.timestamps
        return 1 << 62 if first is None else first


def _not_bool(key: str, value: Any) -> InputError:
    text = "`{}` is {}, must be True or False"
    return InputError(text.format(key, shorten(repr(value), 80)))


def _list(names: Any) -> str:
    shown = ", ".join(sorted(names)[:8]) + (", …" if len(names) > 8 else "")
    return "must be one of " + shown if names else "but the model has none to choose from"
