"""Generator: the methods to ask for new tokens, shared by a model and a session."""

from typing import TYPE_CHECKING, Any, Callable, List, Optional

from ..base.arguments import check_callback
from .options import Ends, Options, Stops

if TYPE_CHECKING:
    from .constraint import Constraint
    from .stream import TokenStream


class Generator:
    """Makes new tokens behind a prompt."""

    def _stream(self, input_ids: Any, decoder_input_ids: Any, options: Options) -> "TokenStream":
        raise NotImplementedError

    def generate(
        self,
        input_ids: Any,
        *,
        on_token: Optional[Callable[[int], Any]] = None,
        max_new_tokens: Optional[int] = None,
        do_sample: Optional[bool] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        seed: Optional[int] = None,
        stop: Stops = (),
        eos: Optional[Ends] = None,
        constraint: "Optional[Constraint]" = None,
        lookup: bool = False,
        decoder_input_ids: Any = None,
    ) -> List[int]:
        """New tokens of a text. A model's caches live as long as this call, a session's are kept.

        Args:
            input_ids: token ids of the prompt, [length] or [1, length]; of any length that the
                context has room for. Where an encoder reads a source, that: its token ids, or
                arrays by the names of the encoder's inputs, such as ``{"input_features": array}``.
            on_token: a function that gets each token as soon as it is made; ends the generation by
                returning False.
            max_new_tokens: the largest number of new tokens. None: the bundle's default, as the
                context has room.
            do_sample: False takes the likeliest token. None: True where temperature, top_k or top_p
                is given, else the bundle's default.
            temperature: logits are divided by it; 0 means the likeliest token.
            top_k: only of the k likeliest tokens; 0: of all.
            top_p: only of the likeliest tokens that together have this probability.
            repetition_penalty: over 1, makes tokens of the text so far less likely.
            seed: the seed of the random choices; None: another text each time.
            stop: token ids, and sequences of them, after which the text ends.
            eos: tokens that end the text, instead of the bundle's own; (): none does.
            constraint: object that says which tokens may come next, for this text alone; see
                ``Constraint``, and ``Model.make_constraint`` for JSON and regular expressions.
            lookup: True tries tokens that followed the same tokens before, several in one run, where
                that pays; no token changes. For bundles built with ``lookup``; not with a constraint.
            decoder_input_ids: after a source, what the new text goes on from, [length] or [1, length],
                instead of the bundle's start tokens alone: these go before it unless it begins with them.

        Returns:
            The new tokens, the one that ended them (of eos, or the last of a stop) included.

        Raises:
            ContextLengthError: prompt and new tokens don't fit into the context; nothing has run.
            InputError: something else is wrong with the arguments; lists everything.
            ConstraintError: the constraint fails, or allows no token; a session can go on.
            OutsideBucketsError: no bucket of the encoder takes a source of this size.
            GenerationError: the model isn't a language model, or its variant can't generate.
            NativeError: native code reported a failure, or logits aren't finite.
            ModelClosedError: the model is closed.
        """
        check_callback("on_token", on_token)
        options = Options(
            max_new_tokens,
            do_sample,
            temperature,
            top_k,
            top_p,
            repetition_penalty,
            seed,
            stop,
            eos,
            constraint,
            lookup,
        )
        stream = self._stream(input_ids, decoder_input_ids, options)
        for token in stream:
            if on_token is not None and on_token(token) is False:
                stream.close()
        return stream.tokens

    def stream(
        self, input_ids: Any, *, decoder_input_ids: Any = None, **options: Any
    ) -> "TokenStream":
        """Like ``generate``, as an iterator that makes each token when it is asked for.

        ``options`` are those of ``generate`` from ``max_new_tokens`` to ``lookup``.
        """
        return self._stream(input_ids, decoder_input_ids, Options(**options))
