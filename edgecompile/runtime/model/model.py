"""A bundle opened for running: ``Model.run(inputs) -> outputs``."""

from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Optional, Union, overload

from ..cpu.host import Host
from ..format.files.folder import BundleFolder
from ..generation.checkpoints import CHECKPOINT_BYTES, make_checkpoint_settings
from ..generation.options import Options
from ..open.bundle import OpenBundle
from ..open.choose import Opened
from ..text.generator import TextGenerator

if TYPE_CHECKING:
    from ..format.output import Path
    from ..generation.stream import TokenStream
    from ..speech.transcript import Segment, Transcript
    from ..text.encoder import Text, TextEncoder, TextOutputs
    from ..text.grammar import GrammarConstraint
    from ..text.prompts import Prompts
    from ..text.session import TextSession
    from .policy import Policy
    from .state_stream import StateStream


class Model(OpenBundle, TextGenerator):
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
        self._written: Optional[Prompts] = None

    def encode_texts(
        self,
        texts: "Iterable[Text]",
        *,
        prompt: Optional[str] = None,
        truncate: bool = True,
        precision: str = "float32",
    ) -> "TextOutputs":
        """Runs texts: tokenizes them, batches those of like length, gives the outputs by text.

        Args:
            texts: strings; or pairs of them, for models that read two texts at once.
            prompt: the bundle's prompt that goes before each text; None: its default one.
            truncate: whether to cut texts that are longer than the bundle takes; the result says
                which those were.
            precision: what the embedding of each text is made of: "float32" as the model gives it; "int8",
                "uint8" of a byte for each number, "binary", "ubinary" of a bit. Other outputs stay.

        Raises:
            InputError: an item isn't text, or is too long and isn't to be cut; the bundle has no embedding, or
                doesn't know its ranges, which "int8" and "uint8" need.
            TokenizerError: the bundle holds no tokenizer, or takes more than texts give; a
                TokenizersMissingError where the Python package tokenizers isn't installed.
            NativeError, ModelClosedError: see ``run``.
        """
        return self._text_encoder().encode(self, texts, prompt, truncate, precision)

    def _text_encoder(self) -> "TextEncoder":
        # Two threads may both make one at first; they are alike.
        if self._texts is None:
            from ..text.encoder import TextEncoder

            self._texts = TextEncoder(self)
        return self._texts

    def session(
        self,
        *,
        load: "Optional[Path]" = None,
        checkpoint_every: Optional[int] = None,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> "TextSession":
        """A conversation: texts that begin as the one before did need only their new part run.

        Args:
            load: Path of a file that ``TextSession.save`` wrote, to go on from there.
            checkpoint_every: Number of tokens after which states of a fixed size, or rows of windows, are kept,
                besides at the ends of prompts and answers. None: there alone. Other models need none.
            checkpoint_bytes: Most memory for what is kept; what would save the least goes first. Rows of windows at
                the last prompt's end and two places before it stay. 0: nothing is kept.

        Raises:
            GenerationError: the model is no language model, or its variant can't generate.
            InputError: an argument is wrong, or the file can't be used: it is damaged, or of another bundle or
                variant.
            UnsupportedHostError: there is no memory for its caches.
        """
        from ..text.session import open_text_session

        settings = make_checkpoint_settings(checkpoint_every, checkpoint_bytes)
        return open_text_session(self, self._prompts, settings, load)

    @overload
    def stream(self) -> "StateStream": ...
    @overload
    def stream(
        self, input_ids: Any, *, decoder_input_ids: Any = None, **options: Any
    ) -> "TokenStream": ...
    def stream(
        self, input_ids: Any = None, *, decoder_input_ids: Any = None, **options: Any
    ) -> "Union[StateStream, TokenStream]":
        """The tokens of a language model, one by one as they are made; see ``generate``.

        Without arguments, of a model with state: runs that keep the state, such as those of chunks of a recording.
        The state was named where the bundle was built (``state`` of a factory).

        Raises:
            InputError: without arguments, the model has no state.
        """
        if input_ids is None and self.manifest.generation is None:
            from .state_stream import StateStream

            return StateStream(self)
        return super().stream(input_ids, decoder_input_ids=decoder_input_ids, **options)

    def policy(self, *, seed: Optional[int] = None) -> "Policy":
        """A robot's policy at the start of an episode: normalizes observations, and keeps a queue of actions.

        Args:
            seed: Seed of the noise that some policies begin with. None: another noise each time.

        Raises:
            InputError: the model is no policy, or the seed is no integer from 0 to 2^32 - 1.
        """
        from .policy import Policy

        return Policy(self, seed)

    def transcribe(
        self,
        samples: Any,
        sampling_rate: int,
        *,
        timestamps: Optional[bool] = None,
        language: Optional[str] = None,
        task: Optional[str] = None,
        max_new_tokens: Optional[int] = None,
        condition_on_prev_tokens: bool = False,
        on_segment: "Optional[Callable[[Segment], Any]]" = None,
    ) -> "Transcript":
        """The text of a recording, with the times of its parts.

        Tokens are chosen greedily, at no other temperature. With Whisper a longer recording takes several windows; other
        models read a recording at once.

        Args:
            samples: Samples of one channel, floats [samples] from -1 to 1.
            sampling_rate: Samples of a second, in Hz; the model takes one rate.
            timestamps: Whether the text has times. None: where the model has them. Long recordings need them.
            language: Name of the spoken language, such as "en" or "english". None: the model's default, or the
                likeliest one.
            task: "transcribe", or "translate" into English. None: the model's default.
            max_new_tokens: Largest number of new tokens of a window. None: the model's own.
            condition_on_prev_tokens: Whether a window's text goes on from the text before it.
            on_segment: Function that gets each segment as soon as its window is done; ends the transcription by
                returning False.

        Raises:
            InputError: the model takes no recordings, the samples aren't such a recording, or an option doesn't go
                with the model.
            ContextLengthError: ``max_new_tokens`` don't fit into the context.
            OutsideBucketsError: the model has no windows, and none of its buckets takes a recording of this length.
            TokenizersMissingError: the bundle has a tokenizer, and the Python package tokenizers isn't installed.
            GenerationError, NativeError, ModelClosedError: see ``generate``.
        """
        from ..speech.transcript import transcribe
        from ..speech.windows import Choices

        choices = Choices(timestamps, language, task, max_new_tokens, condition_on_prev_tokens)
        return transcribe(self, samples, sampling_rate, choices, on_segment)

    def make_constraint(
        self,
        *,
        json_schema: "Union[str, Mapping[str, Any], bool, None]" = None,
        regex: Optional[str] = None,
        lark: Optional[str] = None,
    ) -> "GrammarConstraint":
        """A constraint for the text of one call of ``generate``, ``complete`` or ``chat``.

        Needs the Python packages llguidance and tokenizers, and a tokenizer whose tokens are bytes.

        Args:
            json_schema: JSON schema of the text, as an object or as JSON; the text has white space only
                within strings.
            regex: regular expression that the whole text matches, in the syntax of the Rust crate regex.
            lark: rules in the form of Lark, as llguidance reads them; the text is a ``start``.

        Raises:
            ConstraintError: none or several are given, or the given one can't be read, is too large, or
                asks for something that llguidance can't do.
            TokenizerError: llguidance isn't installed, or can't use the bundle's tokenizer; or the bundle has none.
            GenerationError: the model is no language model.
        """
        from ..text.grammar import make_grammar

        grammar = make_grammar(json_schema, regex, lark)
        return self._prompts().grammars.make(grammar)

    def _prompts(self) -> "Prompts":
        if self._written is None:
            from ..text.prompts import Prompts

            self._written = Prompts(self)
        return self._written

    def _stream(self, input_ids: Any, decoder_input_ids: Any, options: Options) -> "TokenStream":
        # No other text will go back in it.
        session = self.session(checkpoint_bytes=0)
        return session._stream(input_ids, decoder_input_ids, options)
