"""The models that every protocol calls: those of one worker, by name and version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from edgecompile.runtime import Model
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.text.encoder import Text, TextEncoder, TokenizedText
from edgecompile.server.answers import Answer, TextAnswer
from edgecompile.server.body_budget import check_characters
from edgecompile.server.errors import (
    BadRequest,
    NotReady,
    UnknownModel,
    Unprocessable,
    translate,
)
from edgecompile.server.generation import Generator
from edgecompile.server.journal import Journal
from edgecompile.server.schedule.scheduler import Scheduler
from edgecompile.server.schedule.streams import Cores
from edgecompile.server.settings import DEFAULT_LIMITS, Limits

#: Texts of so many characters together are tokenized on the event loop: a thread costs more.
_SHORT = 2000


class ServedModel:
    """One open bundle in one worker; made on the event loop that its methods are called on.

    Attributes:
        name: the name for clients.
        version: the id of the build: the beginning of its manifest's SHA-256.
        model: the open bundle.
        scheduler: its queue.
        generator: makes new tokens; None where the bundle is no language model.
        proven: set once it has reproduced its golden vectors.
    """

    def __init__(
        self,
        model: Model,
        name: str | None = None,
        *,
        scheduler: Scheduler | None = None,
        limits: Limits = DEFAULT_LIMITS,
        clock: Callable[[], float] = time.monotonic,
        costs: Mapping[str, Any] | None = None,
        journal: Journal | None = None,
        cores: Cores | None = None,
        lookup: bool = False,
    ) -> None:
        """Takes ``model`` over; ``close`` closes it. The rest is as in ``Scheduler`` and ``Generator``."""
        self.model = model
        self.name = name or model.manifest.name
        self.version: str = model.info["manifest_sha256"][:12]
        self.scheduler = scheduler or Scheduler(
            model,
            queue=limits.queue,
            texts=limits.waiting_texts,
            clock=clock,
            costs=costs,
            journal=journal,
            cores=cores,
        )
        self.clock = clock
        self._characters = limits.characters
        self.proven = False
        self.generator: Generator | None = None
        if model.manifest.generation is not None:
            texts, queue = limits.generations, limits.queue
            shared = self.scheduler.cores
            self.generator = Generator(
                model,
                texts,
                queue,
                clock,
                journal,
                shared,
                limits.characters,
                limits.conversations,
                lookup,
            )
        self._outputs = frozenset(item.name for item in model.manifest.outputs)
        self._encoder: TextEncoder | None = None
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    async def infer(
        self,
        inputs: Mapping[str, NDArray[Any]],
        *,
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
        priority: int = 0,
    ) -> Answer:
        """Runs a batch. Cancelling the task that awaits it takes it out of the queue.

        Args:
            inputs: an array for every input, as ``Model.run`` takes them.
            outputs: the outputs that are wanted; None: all.
            deadline: the time from which the answer is of no more use, by ``clock``.
            priority: 1 goes first, then 2, and so on; 0, which is none, goes last.

        Raises:
            BadRequest: lists what is wrong with the inputs; or an output is unknown.
            NotReady, Overloaded, DeadlineExceeded: it isn't run.
            ServerError: the model failed.
        """
        self.check_ready()
        self.check_outputs(outputs)
        return await self.scheduler.submit(
            inputs, outputs=outputs, deadline=deadline, priority=priority
        )

    async def encode(
        self,
        texts: Sequence[Text | TokenizedText],
        *,
        prompt: str | None = None,
        truncate: bool = True,
        deadline: float | None = None,
        priority: int = 0,
    ) -> TextAnswer:
        """Tokenizes texts and runs them, each an item of the queue.

        Args:
            texts: strings, pairs of them, or what has been tokenized already.
            prompt, truncate: the arguments of ``Model.encode_texts``.
            deadline, priority: the arguments of ``infer``.

        Raises:
            BadRequest, Unprocessable: something is wrong with the texts, or the bundle takes none.
            TooLarge: they have too many characters.
            Others as ``infer``.
        """
        self.check_ready()
        encoder = self.encoder()
        tokenized = await self._tokenize(encoder, texts, prompt, truncate)
        try:
            arrays = [encoder.make_inputs([text]) for text in tokenized]
        except EdgecompileError as error:
            raise translate(error) from None
        answers = await self.infer_all(arrays, deadline=deadline, priority=priority)
        outputs = [
            {name: encoder.cut(name, array[0], len(text.ids)) for name, array in a.outputs.items()}
            for a, text in zip(answers, tokenized, strict=True)
        ]
        waited = max((a.queue_s for a in answers), default=0.0)
        ran = max((a.run_s for a in answers), default=0.0)
        return TextAnswer(outputs, tokenized, waited, ran)

    async def infer_all(
        self,
        requests: Sequence[Mapping[str, NDArray[Any]]],
        *,
        deadline: float | None = None,
        priority: int = 0,
    ) -> list[Answer]:
        """Runs several batches, each an item of the queue; all or none. The rest is as in ``infer``."""
        self.check_ready()
        futures: list[asyncio.Future[Answer]] = []
        try:
            futures = self.scheduler.submit_all(requests, deadline=deadline, priority=priority)
            return [await future for future in futures]
        finally:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # one was raised; others aren't left unlooked at

    async def _tokenize(
        self,
        encoder: TextEncoder,
        texts: Sequence[Text | TokenizedText],
        prompt: str | None,
        truncate: bool,
    ) -> list[TokenizedText]:
        plain = [text for text in texts if not isinstance(text, TokenizedText)]
        if prompt is not None and len(plain) < len(texts):
            raise Unprocessable("a prompt goes before texts, and not before token ids")
        size = sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in plain)
        check_characters(size, self._characters)
        try:
            if size <= _SHORT:
                tokenized = encoder.tokenize(plain, prompt, truncate)
            else:
                loop = asyncio.get_running_loop()
                tokenized = await loop.run_in_executor(
                    self._tokenizing, encoder.tokenize, plain, prompt, truncate
                )
        except EdgecompileError as error:
            raise translate(error) from None
        iterator = iter(tokenized)
        return [text if isinstance(text, TokenizedText) else next(iterator) for text in texts]

    def encoder(self) -> TextEncoder:
        """The encoder of texts as inputs.

        Raises:
            Unprocessable: the bundle takes no texts, or the package tokenizers isn't installed.
        """
        if self._encoder is None:
            try:
                self._encoder = TextEncoder(self.model)
            except EdgecompileError as error:
                raise translate(error) from None
        return self._encoder

    def check_outputs(self, names: Sequence[str] | None) -> None:
        """Raises BadRequest where a name isn't an output's, or comes twice; None means all."""
        if names is not None:
            unknown = [name for name in names if name not in self._outputs]
            if unknown or len(set(names)) < len(names):
                outputs = ", ".join(sorted(self._outputs))
                what = (
                    f"there is no output {unknown[0]!r:.80}"
                    if unknown
                    else "an output is named twice"
                )
                raise BadRequest(f"{what}; {self.name} has {outputs}")

    @property
    def running_since(self) -> float | None:
        """The start of the oldest current run or step, by ``clock``; None: nothing runs."""
        times = [self.scheduler.running_since]
        if self.generator is not None:
            times.append(self.generator.steps.running_since)
        return min((since for since in times if since is not None), default=None)

    @property
    def ready(self) -> bool:
        """Whether it takes requests: it is proven, and nothing has broken its GPU since."""
        return self.proven and self.model.broken is None

    def check_ready(self) -> None:
        """Raises NotReady unless it takes requests."""
        if not self.ready:
            raise NotReady(self.model.broken or f"{self.name} isn't ready", 1.0)

    async def close(self) -> None:
        """Refuses further requests, waits for those that are in, and closes the model."""
        self.proven = False
        await self.scheduler.close()
        self._tokenizing.shutdown()
        if self.generator is not None:
            self.generator.close()
        self.model.close()


class Repository:
    """The models of a worker. A name without a version means the one that was added last."""

    def __init__(self, models: Iterable[ServedModel] = ()) -> None:
        self._models: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            self.add(model)

    def add(self, model: ServedModel) -> None:
        """Takes a model in; another one of its name and version goes."""
        versions = self._models.setdefault(model.name, {})
        versions.pop(model.version, None)
        versions[model.version] = model

    def get(self, name: str | None, version: str | None = None) -> ServedModel:
        """The model of this name; None: the only one.

        Raises:
            BadRequest: none is named, and there are several.
            UnknownModel: there is none, or none of this version.
        """
        if name is None and len(self._models) > 1:
            raise BadRequest(f"model is missing; this server has {', '.join(self._models)}")
        name = next(iter(self._models), "") if name is None else name
        versions = self._models.get(name)
        if versions is None:
            names = ", ".join(self._models) or "none"
            raise UnknownModel(f"there is no model {name!r:.100}; this server has {names}")
        if not version:
            return next(reversed(versions.values()))
        if version not in versions:
            names = ", ".join(versions)
            raise UnknownModel(f"{name} has no version {version!r:.100}, but {names}")
        return versions[version]

    def versions(self, name: str) -> list[str]:
        """The versions of a model, the default one last."""
        return [model.version for model in self if model.name == name]

    def every(self, name: str, version: str | None = None) -> list[ServedModel]:
        """The model of this name and version, or all of the name's versions; raises as ``get``."""
        model = self.get(name, version)
        return [model] if version else [item for item in self if item.name == name]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter([item for versions in self._models.values() for item in versions.values()])

    def __len__(self) -> int:
        return sum(map(len, self._models.values()))
