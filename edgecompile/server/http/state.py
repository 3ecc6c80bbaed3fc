"""The state that the application shares with its handlers."""

from __future__ import annotations

from collections.abc import Callable

from edgecompile.server.body_budget import BodyBudget
from edgecompile.server.errors import NotReady
from edgecompile.server.http.metrics import Metrics
from edgecompile.server.serving import Repository
from edgecompile.server.settings import Settings


class State:
    """The models of a worker and how it is.

    Attributes:
        repository: the models.
        settings: limits and keys.
        metrics: its counters.
        room: the room for the bodies of all requests.
        draining: set once the server is about to end: not ready any more, and each answer closes
            its connection.
        connections: a function that gives the number of open ones, where that is known.
    """

    def __init__(self, repository: Repository, settings: Settings) -> None:
        self.repository = repository
        self.settings = settings
        self.metrics = Metrics()
        self.room = BodyBudget(settings.limits.pending_bytes)
        self.draining = False
        self.connections: Callable[[], int] = lambda: 0

    def stuck(self) -> str | None:
        """The model that has been running for too long, or None."""
        for model in self.repository:
            since = model.running_since
            if since is not None and model.clock() - since > self.settings.stuck_s:
                return f"{model.name} has been running for {model.clock() - since:.0f} s"
        return None

    def broken(self) -> str | None:
        """The model that can't run any more in this process, and the reason, or None."""
        for model in self.repository:
            if model.model.broken is not None:
                return f"{model.name}: {model.model.broken}"
        return None

    def sick(self) -> str | None:
        """Why another process has to take this one's place, or None."""
        return self.stuck() or self.broken()

    def check_ready(self) -> None:
        """Raises NotReady unless every model takes requests."""
        if self.draining:
            raise NotReady("the server is about to end", 1.0)
        if (broken := self.broken()) is not None:
            raise NotReady(broken, 1.0)
        waiting = [model.name for model in self.repository if not model.ready]
        if waiting:
            raise NotReady(f"not ready yet: {', '.join(waiting)}", 1.0)
