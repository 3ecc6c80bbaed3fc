"""HTTP over h11, a parser in Python, where httptools isn't installed."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgecompile.server.http.limited import BODY, HEADER, IDLE, RUNNING, Limited


class H11(Limited, H11Protocol):
    """uvicorn's protocol with our limits."""

    def phase(self) -> str:
        """See the base."""
        state = self.conn.their_state
        if state is h11.IDLE:
            return HEADER if self.conn.trailing_data[0] else IDLE
        if state is h11.SEND_BODY:
            return BODY
        return RUNNING
