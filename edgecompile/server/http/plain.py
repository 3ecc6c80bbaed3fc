"""HTTP over h11, a parser in Python, where httptools isn't installed."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgecompile.server.http.limited import BODY, HEADER, IDLE, RUNNING, Limited


class H11(Limited, H11Protocol):
    """uvicorn's protocol with our limits."""

    def handle_events(self) -> None:
        """As uvicorn's; reads on behind a whole request, as the end of the connection couldn't be seen otherwise."""
        super().handle_events()
        whole = self.conn.their_state not in (h11.SEND_BODY, h11.ERROR)
        if whole and not self.conn.trailing_data[0]:
            self.flow.resume_reading()

    def in_head(self) -> bool:
        """See the base."""
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def phase(self) -> str:
        """See the base."""
        state = self.conn.their_state
        if state is h11.IDLE:
            return HEADER if self.in_head() else IDLE
        return BODY if state is h11.SEND_BODY else RUNNING
