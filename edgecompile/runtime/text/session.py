"""A conversation in texts or tokens."""

from typing import Callable

from ..format.schema import GenerationSpec
from ..generation.session import Session, open_session
from ..open.bundle import OpenBundle
from .generator import TextGenerator
from .prompts import Prompts


class TextSession(Session, TextGenerator):
    """A session that takes texts too; see ``Session``."""

    def __init__(
        self, bundle: OpenBundle, spec: GenerationSpec, read_prompts: Callable[[], Prompts]
    ) -> None:
        """``read_prompts`` is called where a text is given."""
        super().__init__(bundle, spec)
        self._read_prompts = read_prompts

    def _prompts(self) -> Prompts:
        return self._read_prompts()


def open_text_session(bundle: OpenBundle, read_prompts: Callable[[], Prompts]) -> TextSession:
    """See ``Model.session``."""
    return open_session(bundle, lambda bundle, spec: TextSession(bundle, spec, read_prompts))
