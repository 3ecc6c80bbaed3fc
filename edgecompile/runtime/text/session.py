"""A conversation in texts or tokens."""

from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence

from ..format.manifest.schema import GenerationSpec
from ..generation.checkpoints import CheckpointSettings
from ..generation.options import Options
from ..generation.session import Session, open_session
from ..generation.stream import TokenStream
from ..open.bundle import OpenBundle
from .generator import TextGenerator
from .prompts import Prompt, Prompts

if TYPE_CHECKING:
    from ..format.output import Path


class TextSession(Session, TextGenerator):
    """A session that takes texts too; see ``Session``."""

    def __init__(
        self,
        bundle: OpenBundle,
        spec: GenerationSpec,
        checkpoints: CheckpointSettings,
        read_prompts: Callable[[], Prompts],
    ) -> None:
        """``read_prompts`` is called where a text is given."""
        super().__init__(bundle, spec, checkpoints)
        self._read_prompts = read_prompts

    def _prompts(self) -> Prompts:
        return self._read_prompts()

    def stream_prompt(
        self,
        prompt: Prompt,
        ids: List[int],
        options: Options,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> TokenStream:
        """``stream`` of a text or a chat whose token ids are known."""
        # Keys and values serve from wherever two texts part. States are kept there, and rows before a message.
        marks: List[int] = []
        if self._text.states is not None:
            marks = self._prompts().find_marks(prompt, ids, tools)
        elif self._caches.windows is not None:
            marks = self._prompts().find_last_message(prompt, ids, tools)
        return self._stream(ids, None, options, marks)


def open_text_session(
    bundle: OpenBundle,
    read_prompts: Callable[[], Prompts],
    checkpoints: CheckpointSettings,
    load: "Optional[Path]" = None,
) -> TextSession:
    """See ``Model.session``."""
    session = open_session(
        bundle, lambda bundle, spec: TextSession(bundle, spec, checkpoints, read_prompts)
    )
    if load is not None:
        session.load(load)
    return session
