"""Steps of texts, of which each gives one of them a token: in turns, on one thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from edgecompile.runtime import Model
from edgecompile.runtime.base.errors import EdgecompileError, InputError
from edgecompile.runtime.format.manifest.schema import RECURRENT_LM
from edgecompile.runtime.generation.stream import TokenStream
from edgecompile.runtime.generation.together import Together
from edgecompile.server.journal import Journal
from edgecompile.server.schedule.pace import Pace
from edgecompile.server.schedule.streams import Cores
from edgecompile.server.schedule.threads import Threads
from edgecompile.server.schedule.turns import Turns


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


class Steps:
    """Runs the steps of one language model's texts.

    Between two chunks of a prompt the other texts get a token each. A token is a run like any other: it
    has those of the model's threads for which CPUs are free. Where the bundle has a program for that, and it is
    faster, several texts get their tokens in one run.

    Attributes:
        pace: Costs of runs of several texts, as far as they are known.
        running_since: Time by the clock at which the step under way began; None: nothing runs.
    """

    def __init__(
        self, model: Model, cores: Cores | None, journal: Journal, clock: Callable[[], float]
    ) -> None:
        """``cores`` are shared with other models; None: as many as the model's threads."""
        self._model, self._journal, self._clock = model, journal, clock
        self.running_since: float | None = None
        info = model.info
        self._cpus = int(info.get("threads") or 1)
        self._fewest = 1 if info["run_threads"] else self._cpus
        enough = cores is not None and cores.count >= self._fewest
        self._cores = cores if cores is not None and enough else Cores(self._cpus)
        self._cores.share(self._begin)
        self._turns = Turns[_Step]()
        self._together = Together(model) if model.batch_texts else None
        spec = model.manifest.generation
        self._has_states = spec is not None and spec.kind == RECURRENT_LM
        self.pace = Pace(max(1, model.batch_texts))
        self._busy = False
        self._thread = Threads(1)

    def next(self, stream: TokenStream, key: bytes) -> asyncio.Future[int | None]:
        """A text's next token, once it has its turn and CPUs; None: it has ended."""
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
                try:
                    together.run(ready)
                    self.pace.saw(len(ready), threads, began() - at)
                except InputError:
                    pass  # nothing was run: each is run alone below, where one has its error
                except EdgecompileError as error:
                    # Where its states are lost, no text can be run alone below.
                    if self._has_states:
                        failed.update((step, error) for step in steps if step.stream in ready)
                        self._give_up_together()
        results = [failed.get(step) or self._run_alone(step, threads) for step in steps]
        if self._together is not None and self._turns.tokens:
            try:
                self.pace.measure(threads, partial(self._time_nothing, self._together))
            except EdgecompileError:  # no text's: from now on each is run alone
                self._give_up_together()
        return results

    def _give_up_together(self) -> None:
        self._together, self.pace.most = None, 1

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
        """Ends its thread."""
        self._cores.leave(self._begin)
        self._thread.close()
