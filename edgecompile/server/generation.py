"""New tokens of texts: several texts side by side, a step of each in turn."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from edgecompile.runtime import Model
from edgecompile.runtime.base.errors import EdgecompileError, NativeError
from edgecompile.runtime.format.schema import RECURRENT_LM
from edgecompile.runtime.generation.lookup import Worth
from edgecompile.runtime.generation.options import Options
from edgecompile.runtime.generation.stream import TokenStream
from edgecompile.runtime.generation.together import Together
from edgecompile.runtime.text.chat import Message
from edgecompile.runtime.text.grammar import GrammarConstraint, make_grammar
from edgecompile.runtime.text.prompts import Prompt, Prompts, count_new_tokens
from edgecompile.runtime.text.session import TextSession
from edgecompile.runtime.text.stream import TextStream
from edgecompile.runtime.text.tools import Call, CallReader
from edgecompile.server.body_budget import check_characters
from edgecompile.server.conversations import Conversations
from edgecompile.server.errors import Overloaded, translate
from edgecompile.server.grammar_thread import GrammarThread
from edgecompile.server.journal import Journal, digest
from edgecompile.server.schedule.pace import Pace
from edgecompile.server.schedule.streams import Cores
from edgecompile.server.schedule.threads import Threads
from edgecompile.server.schedule.turns import Turns

#: Prompts of so many characters are tokenized on the event loop: a thread costs more.
_SHORT = 2000
#: Of learning how long texts take.
_FOLLOW = 0.1


@dataclass(frozen=True)
class Piece:
    """A piece of a text: its new characters, the number of tokens so far, and why the text ended or None.

    ``calls`` are those of tools behind the characters.
    """

    text: str
    tokens: int
    finish_reason: str | None
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Tools:
    """Tools that a chat's answer may call.

    Attributes:
        described: the tools as the client describes them, for the template.
        schemas: schemas of the arguments by the tools' names.
        must: names of those of which the answer is a call; none: the model is free.
        several: whether it may call more than one.
    """

    described: tuple[dict[str, Any], ...]
    schemas: dict[str, Any]
    must: tuple[str, ...]
    several: bool


@dataclass(frozen=True)
class Generation:
    """A text to go on from.

    Attributes:
        prompt: a text, token ids, or the messages of a chat.
        stop: texts at which the new one ends; they aren't part of it.
        options: Options of ``Model.stream``; ``max_new_tokens`` may be ``ALL``. None is the number of the
            model's own generation_config.json, and without one ``ALL``.
        grammar: arguments of ``make_grammar``, of which the new text is one; none: it is free.
        tools: tools that an answer of a chat may call.
    """

    prompt: str | Sequence[int] | Sequence[Message]
    stop: tuple[str, ...]
    options: dict[str, Any]
    grammar: Mapping[str, Any] = field(default_factory=dict)
    tools: Tools | None = None

    @property
    def described(self) -> Sequence[dict[str, Any]]:
        """The tools for the template."""
        return () if self.tools is None else self.tools.described


class _More:
    """A step's result where its prompt has more chunks."""


@dataclass(eq=False)
class _Step:
    """The next token of a text; the future gets it, or None where the text has ended."""

    stream: TokenStream
    key: bytes
    token: asyncio.Future[int | None]

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for the token."""
        return not self.token.done()


#: A token, None where the text has ended, or what went wrong.
_Result = int | _More | Exception | None


class Generator:
    """Generates with one language model. One thread makes the tokens of all texts, in turns.

    Between two chunks of a prompt the other texts get a token each. A token is a run like any other: it
    has those of the model's threads for which CPUs are free. Where the bundle has a program for that, and it is
    faster, several texts get their tokens in one run.

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
        #: When the step under way began, by the clock; None: nothing runs.
        self.running_since: float | None = None
        self._places, self._most = asyncio.Semaphore(texts), texts
        self._text_s = 0.0  # that a text takes, in the mean
        self._room = texts + waiting
        self._inside = 0
        info = model.info
        self._cpus = int(info.get("threads") or 1)
        self._fewest = 1 if info["run_threads"] else self._cpus
        enough = cores is not None and cores.count >= self._fewest
        self._cores = cores if cores is not None and enough else Cores(self._cpus)
        self._cores.share(self._begin)
        self._turns = Turns[_Step]()
        self._together = Together(model) if model.batch_texts else None
        #: What is known of runs of several texts.
        self.pace = Pace(max(1, model.batch_texts))
        self._busy = False
        self._thread = Threads(1)
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
            session.worth = self._worth = self._worth or session.worth
            stream = await self._begin_stream(session, prompt, generation, options)
            # Special tokens that are part of calls are read, and no others.
            special = [] if generation.tools is None else prompts.tool_format()[1]
            text = TextStream(prompts.tokenizer, stream, generation.stop, special)
            while (token := await self._next(stream, key)) is not None:
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

    def _next(self, stream: TokenStream, key: bytes) -> asyncio.Future[int | None]:
        """The text's next token, once it has its turn and CPUs; None: it has ended."""
        loop = asyncio.get_running_loop()
        step = _Step(stream, key, loop.create_future())
        self._turns.add(step, chunk=not stream.tokens)
        if self._together is None:
            self._begin()
        else:  # once the other texts that have got tokens wait for their next ones
            loop.call_soon(self._begin)
        return step.token

    def _begin(self) -> None:
        """Begins the next step, if one can begin; of several texts where that is known to be faster."""
        if self._busy or self._cores.free < self._fewest:
            return
        step = self._turns.next()
        if step is not None:
            threads = min(self._cores.free, self._cpus)
            steps = [step]
            if step.stream.tokens and self._turns.tokens:
                more = self.pace.choose(1 + self._turns.tokens, threads) - 1
                steps += self._turns.take(more)
            self._cores.free -= threads
            self._busy = True
            self._thread.run(
                partial(self._run_steps, steps, threads), partial(self._end, steps, threads)
            )

    def _run_steps(self, steps: list[_Step], threads: int) -> list[_Result]:
        self.running_since = self._clock()
        try:
            with self._journal.running([step.key for step in steps], self._model):
                if threads == self._cpus:
                    return self._run_all(steps, threads)
                results: list[_Result] = self._model.with_threads(
                    threads, self._run_all, steps, threads
                )
                return results
        except Exception as error:
            return [error] * len(steps)
        finally:
            self.running_since = None

    def _run_all(self, steps: list[_Step], threads: int) -> list[_Result]:
        """Runs what the steps need, together where they are several, and takes their tokens."""
        together, began = self._together, time.perf_counter
        failed = dict[_Step, Exception]()
        if together is not None and len(steps) > 1:
            able = list[tuple[TokenStream, tuple[float, float] | None]]()
            for step in steps:
                try:
                    if step.stream.single() is not None:
                        able.append((step.stream, step.stream.tries()))
                except Exception as error:  # its constraint's, which has ended it
                    failed[step] = error
            alone = self.pace.leave_out([tries for _, tries in able], threads)
            ready = [stream for index, (stream, _) in enumerate(able) if index not in alone]
            if len(ready) > 1:
                at = began()
                # A text that can't be run here is run alone below, and has its error there.
                with suppress(EdgecompileError):
                    together.run(ready)
                    self.pace.saw(len(ready), threads, began() - at)
        results = [failed.get(step) or self._run_alone(step, threads) for step in steps]
        if together is not None and self._turns.tokens:
            try:
                self.pace.measure(threads, partial(self._time_nothing, together))
            except EdgecompileError:  # no text's: from now on each is run alone
                self._together = None
        return results

    def _run_alone(self, step: _Step, threads: int) -> _Result:
        """Runs one chunk of what the token needs; the token, where no more is left."""
        try:
            single = step.stream.single() is not None
            began = time.perf_counter()
            if step.stream.run():
                return _More()
            if single:  # and no other run has given it its logits
                # A run that tries further tokens says nothing of those of one.
                took = time.perf_counter() - began
                self.pace.saw(1, threads, None if step.stream.ahead else took)
            return next(step.stream, None)
        except Exception as error:
            return error

    def _time_nothing(self, together: Together, texts: int) -> float:
        self.running_since = self._clock()  # it is no part of the run before, which may be stuck
        began = time.perf_counter()
        together.run_nothing(texts)
        return time.perf_counter() - began

    def _end(self, steps: list[_Step], threads: int, results: list[_Result]) -> None:
        self._busy = False
        self._cores.free += threads
        for step, result in zip(steps, results, strict=True):
            if not step.wanted:
                continue
            if isinstance(result, _More):
                self._turns.add(step, chunk=True)
            elif isinstance(result, Exception):
                step.token.set_exception(result)
            else:
                step.token.set_result(result)
        if self._together is None:
            self._cores.freed(self._begin)
        else:
            asyncio.get_running_loop().call_soon(self._cores.freed, self._begin)

    def close(self) -> None:
        """Ends its threads."""
        self._cores.leave(self._begin)
        self._conversations.clear()
        self._tokenizing.shutdown()
        self._compiling.close()
        self._thread.close()
