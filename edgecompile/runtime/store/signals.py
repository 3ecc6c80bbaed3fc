"""One handler for each signal, whatever number of listeners it wakes."""

import signal
from contextlib import suppress
from types import FrameType
from typing import Any, Callable, Dict, Optional

from ..base.errors import InputError

#: Each listener's signal, and what each signal did before. They change in single steps, because a
#: handler can't take a lock.
_listeners: Dict[Callable[[], None], int] = {}
_before: Dict[int, Any] = {}


def listen(number: int, wake: Callable[[], None]) -> None:
    """Calls ``wake`` at each signal, until ``unlisten``.

    Raises:
        InputError: there is no such signal, or this isn't the main thread.
    """
    _listeners[wake] = number
    try:
        before = signal.signal(number, _handle)
    except (TypeError, ValueError, OSError) as error:
        del _listeners[wake]
        text = "signal_number is {!r}: {}".format(number, error)
        raise InputError(text, "follow signals in the main thread") from None
    if before is not _handle:
        _before[number] = before or signal.SIG_DFL


def unlisten(wake: Callable[[], None]) -> None:
    """Wakes it no more. A signal without listeners does what it did before."""
    number = _listeners.pop(wake, None)
    if number is not None:
        with suppress(ValueError):  # not in the main thread: the next signal restores it
            _restore(number)


def _restore(number: int) -> bool:
    """Gives a signal without listeners back, unless another handler took the place of this one."""
    if number in list(_listeners.values()) or signal.getsignal(number) is not _handle:
        return False
    signal.signal(number, _before[number])
    return True


def _handle(number: int, frame: Optional[FrameType]) -> None:
    for wake, of in list(_listeners.items()):
        if of == number:
            wake()
    if _restore(number):
        signal.raise_signal(number)
