"""Room for the bodies of all requests under way: what one connection may hold, many may not together."""

from __future__ import annotations

from edgecompile.server.errors import Overloaded

#: Bodies of so many bytes need no room: each connection may have as much in its buffer anyway.
SMALL = 64 << 10


class Room:
    """Bytes for bodies.

    Attributes:
        held: how many are in use.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.held = 0

    def check(self, size: int) -> None:
        """Raises Overloaded where so many more bytes have no room."""
        if self.held + size > self.limit:
            raise Overloaded(
                f"bodies of {self.held} bytes are under way, at most {self.limit} may be: there is no "
                f"room for {size} more",
                1.0,
            )

    def take(self, size: int) -> None:
        """Takes so many more bytes; ``held`` less them gives them back.

        Raises:
            Overloaded: there is no room for them.
        """
        self.check(size)
        self.held += size
