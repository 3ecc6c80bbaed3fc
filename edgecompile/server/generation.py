"""New texts of a language model: their prompts, the places that they wait for, and their pieces."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

import numpy as np

from edgecompile.runtime import Model
from edgecompile.runtime.base.errors import EdgecompileError, NativeError
from edgecompile.runtime.format.manifest.schema import RECURRENT_LM
from edgecompile.runtime.generation.lookup import Worth
from edgecompile.runtime.generation.options import Options
from edgecompile.runtime.generation.stream import TokenStream
from edgecompile.runtime.text.grammar import GrammarConstraint, make_grammar
from edgecompile.runtime.text.prompts import Prompt, Prompts, count_new_tokens
from edgecompile.runtime.text.session import TextSession
from edgecompile.runtime.text.stream import TextStream
from edgecompile.runtime.text.tools import CallReader
from edgecompile.server.body_budget import check_characters
from edgecompile.server.conversations import Conversations
from edgecompile.server.errors import Overloaded, translate
from edgecompile.server.generation_request import Generation, Piece, Tools
from edgecompile.server.generation_steps import Steps
from edgecompile.server.grammar_thread import GrammarThread
from edgecompile.server.journal import Journal, digest
from edgecompile.server.schedule.streams import Cores

#: Prompts of so many characters are tokenized on the event loop: a thread costs more.
_SHORT = 2000
#: Of learning how long texts take.
_FOLLOW = 0.1


class Generator:
    """Generates with one language model, several texts side by side.

    Args:
        model: an open bundle.
        texts: the largest number of texts at a time; each has caches of its own.
        waiting: the largest number of further texts that wait.
        clock: seconds that only go on.
        journal: the journal of runs; None: none is kept.
        cores: the CPUs that it shares with other models; None: as many as the model's threads.
        characters: the largest number of characters of a prompt.
        conversations: the largest number of texts whose caches are kept for their next turns.
        lookup: whether texts try tokens that followed the same ones before, if the bundle has the program for it.

    Attributes:
        steps: Steps that make the tokens of all texts.
    """

    def __init__(
        self,
        model: Model,
        texts: int = 8,
        waiting: int = 1024,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal | None = None,
        cores: Cores | None = None,
        characters: float = math.inf,
        conversations: int = 0,
        lookup: bool = False,
    ) -> None:
        self._model = model
        spec = model.manifest.generation
        self._lookup = lookup and spec is not None and spec.lookup > 1
        # Whether that pays is measured once for all texts: each may be too short to find out.
        self._worth: Worth | None = None
        self._conversations = Conversations(model, conversations)
        self._characters = characters
        self._clock = clock
        self._journal = journal or Journal()
        self._places, self._most = asyncio.Semaphore(texts), texts
        self._text_s = 0.0  # that a text takes, in the mean
        self._room = texts + waiting
        self._inside = 0
        self.steps = Steps(model, cores, self._journal, clock)
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._compiling = GrammarThread()
        # Of texts that have constraints and no place yet: constraints take memory.
        self._constrained = asyncio.Semaphore(texts)
        self._prompts: Prompts | None = None

    def prompts(self) -> Prompts:
        """The bundle's tokenizer and chat template.

        Raises:
            Unprocessable: it has no tokenizer, or the package tokenizers isn't installed.
        """
        if self._prompts is None:
            try:
                self._prompts = Prompts(self._model)
            except EdgecompileError as error:
                raise translate(error) from None
        return self._prompts

    async def read(self, generation: Generation) -> list[int]:
        """The token ids of the prompt; a long one is tokenized on a thread, for it takes a while.

        Raises:
            BadRequest: it holds no tokens, or what can't be encoded; or a chat is refused.
            TooLarge: it has too many characters.
            Unprocessable: the bundle has no tokenizer, or no chat template that can be used.
        """
        prompts, prompt = self.prompts(), generation.prompt
        if not isinstance(prompt, str) and (not prompt or isinstance(prompt[0], int)):
            return list(cast("Sequence[int]", prompt))

        def tokenize() -> list[int]:
            judge = partial(check_characters, most=self._characters)
            try:
                ids = prompts.read(cast("Prompt", prompt), judge, generation.described)
                if generation.tools is not None:
                    prompts.tool_format()  # where the answer's calls can't be told, it isn't begun
                return ids
            except EdgecompileError as error:
                raise translate(error) from None

        if isinstance(prompt, str) and len(prompt) <= _SHORT:
            return tokenize()
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, tokenize)

    def call_reader(self, tools: Tools) -> CallReader:
        """What divides the answer to a chat with tools into text and calls.

        Raises:
            Unprocessable: the template writes calls in no form that is known here.
        """
        try:
            return CallReader(self.prompts().tool_format()[0], tools.schemas)
        except EdgecompileError as error:
            raise translate(error) from None

    async def run(self, prompt: list[int], generation: Generation) -> AsyncIterator[Piece]:
        """The new text, piece by piece, as its tokens are made; the last one says why it ended.

        Raises:
            BadRequest: the options or the grammar are wrong, or there is no room in the context.
            Unprocessable: no grammar can be followed here, or this one takes too long to read.
            NotReady: other grammars do.
            Overloaded: too many texts wait.
            Quarantined: workers died while they ran it.
        """
        key = b""
        if self._journal.notes:
            key = digest(self._model.manifest.name, {"prompt": np.array(prompt)})
            self._journal.check(key)
        if self._inside >= self._room:
            raise Overloaded(
                f"{self._inside} texts are generated or wait, that is the limit",
                max(1.0, self._text_s / self._most),
            )
        self._inside += 1
        try:
            options = await self._enter(prompt, generation)
            try:
                began = self._clock()
                async for piece in self._run(prompt, generation, options, key):
                    yield piece
                took = self._clock() - began
                self._text_s += (_FOLLOW if self._text_s else 1.0) * (took - self._text_s)
            finally:
                self._places.release()
        finally:
            self._inside -= 1

    async def _enter(self, prompt: list[int], generation: Generation) -> Options:
        """Waits for a place, with the text's constraint: no place is held while that is made."""
        prompts, options = self.prompts(), generation.options
        make = self._constrain(generation)
        try:
            most = count_new_tokens(prompts.spec, prompt, options.get("max_new_tokens"))
            chosen = {
                **options,
                "max_new_tokens": most,
                "constraint": None,
                "lookup": self._lookup,
            }
            if make is None:
                await self._places.acquire()
                return Options(**chosen)
            async with self._constrained:
                chosen["constraint"] = await self._compiling.run(make)
                await self._places.acquire()
            return Options(**chosen)
        except EdgecompileError as error:
            raise translate(error) from None

    async def _run(
        self, prompt: list[int], generation: Generation, options: Options, key: bytes
    ) -> AsyncIterator[Piece]:
        session: TextSession | None = None
        try:
            prompts = self.prompts()
            session = self._conversations.take(prompt)
            if self._worth is not None:
                session.worth.right = list(self._worth.right)  # what the text before it learned
            self._worth = session.worth
            stream = await self._begin_stream(session, prompt, generation, options)
            # Special tokens that are part of calls are read, and no others.
            special = [] if generation.tools is None else prompts.tool_format()[1]
            text = TextStream(prompts.tokenizer, stream, generation.stop, special)
            while (token := await self.steps.next(stream, key)) is not None:
                piece = text.read(token)
                if text.finish_reason is not None:
                    reason = "length" if text.finish_reason == "length" else "stop"
                    break
                yield Piece(piece, len(stream.tokens), None)
            else:
                piece, reason = "", "stop"  # somebody else ended it
            if self._journal.suspects():
                self._journal.clear(key)
            yield Piece(piece, len(stream.tokens), reason)
        except EdgecompileError as error:
            if isinstance(error, NativeError):
                session = None
            raise translate(error) from None
        finally:
            # Also where the client went away: what was read so far may be asked for again.
            if session is not None:
                self._conversations.give_back(session)

    def _constrain(self, generation: Generation) -> Callable[[], GrammarConstraint] | None:
        """A call that makes the text's constraint, for a thread: a schema may take a second. None: it has none."""
        prompts, tools = self.prompts(), generation.tools
        if not generation.grammar and (tools is None or not tools.must):
            return None

        def make() -> GrammarConstraint:
            if tools is None:
                return prompts.grammars.make(make_grammar(**generation.grammar))
            asked = {name: tools.schemas[name] for name in tools.must}
            return prompts.grammars.make_call(prompts.tool_format()[0], asked)

        return make

    async def _begin_stream(
        self,
        session: TextSession,
        prompt: list[int],
        generation: Generation,
        options: Options,
    ) -> TokenStream:
        spec, given = self._model.manifest.generation, generation.prompt
        is_chat = not isinstance(given, str) and not isinstance(given[0], int)
        if not is_chat or spec is None or spec.kind != RECURRENT_LM:
            return session.stream(prompt, **options._asdict())
        # The chat is tokenized once more, for where its next turn will part from this one.
        return await asyncio.get_running_loop().run_in_executor(
            self._tokenizing,
            session.stream_prompt,
            cast("Prompt", given),
            prompt,
            options,
            generation.described,
        )

    def close(self) -> None:
        """Ends its threads."""
        self.steps.close()
        self._conversations.clear()
        self._tokenizing.shutdown()
        self._compiling.close()
