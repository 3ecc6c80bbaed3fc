"""Settings of a server, with defaults that are safe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits on a client's requests.

    Attributes:
        body_bytes: the size of a request's body, as it arrives.
        pending_bytes: the size of the bodies of all requests under way together; further large ones
            get 429.
        header_bytes: the size of a request's line and headers.
        elements: the number of elements of a request's tensors together.
        texts: the number of texts of one request.
        characters: the number of characters of the texts of one request together.
        queue: requests that wait for a model; one of many texts is one.
        connections: open at once; further ones get 503.
        generations: texts that are generated at once; further ones wait.
        conversations: texts whose caches are kept when they end, for the next turn; of each model.
        header_s, body_s: seconds for the headers to come whole, and then for the body.
        idle_s: seconds that a connection may wait between two requests.
        write_s: seconds in which a client has to take something of an answer.
    """

    body_bytes: int = 16 << 20
    pending_bytes: int = 256 << 20
    header_bytes: int = 32 << 10
    elements: int = 4 << 20
    texts: int = 2048
    characters: int = 2 << 20
    queue: int = 1024
    connections: int = 1024
    generations: int = 8
    conversations: int = 1
    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0
    write_s: float = 30.0

    @property
    def waiting_texts(self) -> int:
        """Texts of such requests that may wait for a model, together."""
        return 16 * self.texts


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Settings:
    """A worker's settings beside its bundles.

    Attributes:
        limits: the limits of requests.
        keys: bearer keys, one of which a request has to bring; none: anybody may ask.
        slo_s: the deadline of requests that name none; None: they wait as long as it takes.
        stuck_s: seconds after which a run counts as stuck, and with it the worker.
        drain_delay_s: seconds between the notice that the server ends and the end of its listening.
        drain_s: seconds in which requests that are in may end then.
        threads: the threads of one run; None: as many as there are CPUs.
        costs: files that ``bench --serving`` wrote here; each is for the bundle that it names.
        lookup: whether texts of bundles with the program for it try tokens that followed the same ones before.
        token_ids: whether ids in place of texts are taken, as the model's own.
        stats: the file that counts the requests of a model, with {model} for its name and {pid} for
            the worker's number; None: nowhere.
        cors_origins: Origins of pages that may ask from within a browser; "*": all.
    """

    limits: Limits = DEFAULT_LIMITS
    keys: tuple[bytes, ...] = ()
    slo_s: float | None = None
    stuck_s: float = 60.0
    drain_delay_s: float = 0.5
    drain_s: float = 30.0
    threads: int | None = None
    costs: tuple[str, ...] = ()
    stats: str | None = None
    lookup: bool = False
    token_ids: bool = False
    cors_origins: tuple[str, ...] = ()

    @property
    def patience_s(self) -> float:
        """Seconds after which a worker that was to end is killed."""
        return self.drain_delay_s + self.drain_s + 5
