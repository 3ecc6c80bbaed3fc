"""The manifest's ``speech`` as named tuples: how a recording becomes text."""

from types import MappingProxyType
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from ..dtypes import Number

_NONE: Mapping[str, int] = MappingProxyType({})


class LogMelSpec(NamedTuple):
    """The features of a recording: logarithms of its energies in bands of frequencies.

    ``filters`` is the path of a file with the weights of the bands, little-endian float32
    [window // 2 + 1, ``bins``]. A frame sees ``window`` samples; frames begin ``hop`` samples apart.

    Those of Parakeet see ``taper`` of these samples, from each of which ``preemphasis`` times the one before is
    subtracted; None: the features are those of Whisper.
    """

    filters: str
    bins: int
    window: int
    hop: int
    taper: Optional[int] = None
    preemphasis: Optional[Number] = None


class WindowSpec(NamedTuple):
    """The loop over a recording in windows of ``frames``, as Whisper has it.

    ``timestamps`` is the first token that says a time; each further one is ``stride`` frames later, and the token
    before the first says that no times follow. None: the model has no such tokens, so a recording has one window.
    ``max_initial`` is the latest time, in tokens, that a window may begin with; None: any.

    A text begins with the generation's first start token, then ``forced``, where None is the place of a language.
    ``languages`` and ``tasks`` are tokens by name, ``language`` and ``task`` the names where a caller says nothing.
    ``max_length`` limits the tokens of the first window, and grows with what goes before each text;
    ``max_new_tokens`` limits the new ones instead. ``previous`` goes before the text of earlier windows.
    """

    frames: int
    stride: int
    timestamps: Optional[int]
    max_length: int
    max_initial: Optional[int] = None
    forced: Tuple[Optional[int], ...] = ()
    languages: Mapping[str, int] = _NONE
    tasks: Mapping[str, int] = _NONE
    language: Optional[str] = None
    task: Optional[str] = None
    previous: Optional[int] = None
    max_new_tokens: Optional[int] = None


class CtcSpec(NamedTuple):
    """A token for each frame of a recording, of which equal neighbours are one: connectionist temporal classification.

    ``output`` has the logits [batch, frames, vocabulary]; ``blank`` is the token that is left out of the text.
    """

    output: str
    blank: int


class SpeechSpec(NamedTuple):
    """The way from a recording to text: by ``windows`` of features, by ``ctc``, or generated behind all its samples.

    ``input`` takes the features or the samples: of the encoder where there is one. With ``normalize`` samples are
    scaled to the mean 0 and the variance 1. ``tokenizer`` is the path of a tokenizer.json.
    """

    input: str
    sampling_rate: int
    log_mel: Optional[LogMelSpec] = None
    windows: Optional[WindowSpec] = None
    tokenizer: Optional[str] = None
    normalize: bool = False
    ctc: Optional[CtcSpec] = None

    def to_json(self) -> Dict[str, Any]:
        """The manifest's entry; what is None, false or empty isn't there."""
        entry = {
            key: _plain(value._asdict() if hasattr(value, "_asdict") else value)
            for key, value in self._asdict().items()
            if value is not None and value is not False
        }
        return entry


def _plain(value: Any) -> Any:
    """Plain JSON values, without entries that are None or empty."""
    if isinstance(value, Mapping):
        items = {key: _plain(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in items.items() if item not in ([], {})}
    return list(value) if isinstance(value, tuple) else value
