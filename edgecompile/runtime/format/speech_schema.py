"""The manifest's ``speech`` as named tuples: how a recording becomes text."""

from types import MappingProxyType
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

_NONE: Mapping[str, int] = MappingProxyType({})


class LogMelSpec(NamedTuple):
    """The features of a recording: logarithms of its energies in bands of frequencies.

    ``filters`` is the path of a file with the weights of the bands, little-endian float32
    [window // 2 + 1, ``bins``]. A frame sees ``window`` samples; frames begin ``hop`` samples apart.
    """

    filters: str
    bins: int
    window: int
    hop: int


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


class SpeechSpec(NamedTuple):
    """The way from a recording to text.

    ``input`` is the encoder's input that takes the features, ``tokenizer`` the path of a tokenizer.json.
    """

    input: str
    sampling_rate: int
    log_mel: LogMelSpec
    windows: WindowSpec
    tokenizer: Optional[str] = None

    def to_json(self) -> Dict[str, Any]:
        """The manifest's entry; what is None or empty isn't there."""
        entry: Dict[str, Any] = {"input": self.input, "sampling_rate": self.sampling_rate}
        entry["log_mel"] = dict(self.log_mel._asdict())
        entry["windows"] = {
            key: _plain(value)
            for key, value in self.windows._asdict().items()
            if value is not None and _plain(value) not in ([], {})
        }
        if self.tokenizer is not None:
            entry["tokenizer"] = self.tokenizer
        return entry


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
