"""Room for the bodies of all requests under way: what one connection may hold, many may not together.

And for the texts of one request: those that are tokenized whole take far more room as tokens.
"""

from __future__ import annotations

from edgecompile.server.errors import Overloaded, TooLarge

#: Bodies of so many bytes need no room: each connection may have as much in its buffer anyway.
SMALL = 64 << 10


class BodyBudget:
    """Bytes for bodies.

    Attributes:
        held: the number in use.
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


def check_characters(count: int, most: float) -> None:
    """Raises TooLarge for texts of over ``most`` characters: tokenizing all of a prompt takes long, and 200
    times its memory."""
    if count > most:
        raise TooLarge(f"texts of {count} characters, the limit is {most}")
