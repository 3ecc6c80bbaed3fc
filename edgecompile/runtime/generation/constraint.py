"""Constraints: an object of the caller says which tokens may come next."""

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Protocol, Sequence, TypeVar

import numpy as np

from ..base.errors import ConstraintError, EdgecompileError
from ..format.document import shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T")
_WHOLE = (int, np.integer)


class Constraint(Protocol):
    """An object that says which tokens may come next in one text, and in no other.

    It may have two further methods. ``forced()`` returns token ids that must come next, in this order; they cost
    no run of their own. ``ended()`` returns whether the text is complete.
    """

    def mask(self) -> "NDArray[Any]":
        """The tokens that may come next: bool [vocabulary], or uint32 [ceil(vocabulary / 32)].

        Bit ``i`` of word ``j`` is the token ``32 * j + i``.
        """
        ...

    def accept(self, token: int) -> Any:
        """Takes the next token of the text, chosen or forced; also one of eos."""
        ...


class CheckedConstraint:
    """A caller's constraint, nothing of which is believed."""

    def __init__(self, constraint: Any, vocabulary: int) -> None:
        """``vocabulary`` is the number of tokens that the model gives logits of."""
        self._constraint = constraint
        self._vocabulary = vocabulary

    def mask(self) -> "NDArray[np.bool_]":
        """The tokens that may come next, bool [vocabulary].

        Raises:
            ConstraintError: the constraint failed, its mask has another type or size, or allows no token.
        """
        value = _call(self._constraint.mask)
        words = -(-self._vocabulary // 32)
        kind = (value.shape, value.dtype) if isinstance(value, np.ndarray) else None
        if kind == ((self._vocabulary,), np.bool_):
            # A run reads it, which nobody may change meanwhile.
            allowed: NDArray[np.bool_] = np.array(value, order="C")
            return allowed
        if kind == ((words,), np.uint32):
            bits = np.unpackbits(np.ascontiguousarray(value).view(np.uint8), bitorder="little")
            return bits[: self._vocabulary].view(np.bool_)
        found = type(value).__name__
        if isinstance(value, np.ndarray):
            found = "{}{}".format(value.dtype, list(value.shape))
        text = "the constraint's mask is {}, must be bool[{}] or uint32[{}]"
        raise ConstraintError(text.format(shorten(found, 80), self._vocabulary, words))

    def accept(self, token: int) -> None:
        """Tells the constraint the next token; raises ConstraintError where it failed."""
        _call(self._constraint.accept, token)

    def forced(self) -> List[int]:
        """The tokens that must come next.

        Raises:
            ConstraintError: the constraint failed, or they are no tokens of the model.
        """
        method = getattr(self._constraint, "forced", None)
        tokens: Any = () if method is None else _call(method)
        if isinstance(tokens, np.ndarray):
            tokens = tokens.tolist()
        if not isinstance(tokens, (list, tuple)) or not all(map(self._is_token, tokens)):
            text = "the constraint forces {}, must be token ids within 0..{}"
            raise ConstraintError(text.format(shorten(repr(tokens), 80), self._vocabulary - 1))
        return [int(token) for token in tokens]

    def ended(self) -> bool:
        """Whether the text is complete; raises ConstraintError where the constraint failed."""
        method = getattr(self._constraint, "ended", None)
        return method is not None and bool(_call(method))

    def _is_token(self, value: Any) -> bool:
        whole = isinstance(value, _WHOLE) and not isinstance(value, bool)
        return whole and bool(0 <= value < self._vocabulary)


def choose_allowed(
    logits: "NDArray[np.float32]",
    allowed: "NDArray[np.bool_]",
    banned: "Sequence[Optional[NDArray[np.int64]]]",
) -> "NDArray[np.float32]":
    """The logits with minus infinity for all tokens but the allowed ones.

    Args:
        logits: Logits [vocabulary], which are only read; those of other tokens may mean nothing.
        allowed: Tokens that the constraint allows, [vocabulary].
        banned: Lists of tokens that the model itself never chooses here.

    Raises:
        ConstraintError: no token is left.
    """
    masked = np.where(allowed, logits, np.float32(-np.inf))
    for tokens in banned:
        if tokens is not None:
            allowed = allowed.copy()
            allowed[tokens] = False
            masked[tokens] = -np.inf
    if not allowed.any():
        raise ConstraintError(
            "the constraint allows no token",
            "let it allow the tokens of eos where the text may end, or say by ended() that it is complete",
        )
    return masked


def is_constraint(value: Any) -> bool:
    """Whether an object has the methods that a constraint needs, and nothing else by the names of the further two."""
    further = [getattr(value, name, None) for name in ("forced", "ended")]
    needed = [getattr(value, name, None) for name in ("mask", "accept")]
    return all(map(callable, [*needed, *(method for method in further if method is not None)]))


def _call(method: "Callable[..., _T]", *arguments: Any) -> "_T":
    try:
        return method(*arguments)
    except EdgecompileError:
        raise
    except Exception as error:  # whatever a caller's object raises
        name = getattr(method, "__name__", "method")
        text = "the constraint's {}() raised {}: {}".format(name, type(error).__name__, error)
        raise ConstraintError(shorten(text, 500)) from error
