"""A bundle opened for running: ``Model.run(inputs) -> outputs``."""

from typing import TYPE_CHECKING, Any, Iterable, Optional

from .cpu.host import Host
from .format.folder import BundleFolder
from .generation.generator import Generator
from .generation.options import Options
from .opened import OpenBundle
from .opening import Opened

if TYPE_CHECKING:
    from .generation.session import Session
    from .generation.stream import TokenStream
    from .text.encoder import Text, TextEncoder, TextOutputs


class Model(OpenBundle, Generator):
    """An open bundle; made by ``open_bundle``. Every method may be called from any thread.

    A signal handler may call ``close`` whatever it interrupts, except the opening of a bundle, and no
    other method.
    """

    def __init__(
        self, folder: BundleFolder, host: Host, opened: Opened, fallback: Optional[str] = None
    ) -> None:
        """See ``OpenBundle``."""
        super().__init__(folder, host, opened, fallback)
        self._texts: Optional[TextEncoder] = None

    def encode_texts(
        self, texts: "Iterable[Text]", *, prompt: Optional[str] = None, truncate: bool = True
    ) -> "TextOutputs":
        """Runs texts: tokenizes them, batches those of like length, gives the outputs by text.

        Args:
            texts: strings; or pairs of them, for models that read two texts at once.
            prompt: which of the bundle's prompts goes before each text; None: its default one.
            truncate: whether to cut texts that are longer than the bundle takes; the result says
                which those were.

        Raises:
            InputError: what was given isn't text, or is too long and isn't to be cut.
            TokenizerError: the bundle holds no tokenizer, or takes more than texts give; a
                TokenizersMissingError where the Python package tokenizers isn't installed.
            NativeError, ModelClosedError: as ``run``.
        """
        return self._text_encoder().encode(self, texts, prompt, truncate)

    def _text_encoder(self) -> "TextEncoder":
        # Two threads may both make one at first; they are alike.
        if self._texts is None:
            from .text.encoder import TextEncoder

            self._texts = TextEncoder(self)
        return self._texts

    def session(self) -> "Session":
        """A conversation: texts that begin as the one before did need only their new part run.

        Raises:
            GenerationError: the model is no language model, or a GPU runs it.
            UnsupportedHostError: there is no memory for its caches.
        """
        from .generation.session import open_session

        return open_session(self)

    def _stream(self, input_ids: Any, decoder_input_ids: Any, options: Options) -> "TokenStream":
        return self.session()._stream(input_ids, decoder_input_ids, options)
