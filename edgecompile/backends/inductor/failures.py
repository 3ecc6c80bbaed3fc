"""Explains why torch's Inductor generated no code for a graph, with the line of the model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgecompile.export.guards import readable_guard
from edgecompile.models.source_lines import SourceLine, line_of_trace

#: Inductor puts the operator's own stack trace last, behind those of the operator's arguments.
_OWN_TRACE = "Found from"
_GUARD = re.compile(r"Could not guard on data-dependent expression (.+?) \(unhinted")
_NUMBER = re.compile(r"from data-dependent expression (.+?) \(unhinted")
#: torch's names for numbers that only a run tells: integers, and floats.
_UNKNOWN = re.compile(r"\b(?:u|zuf)\d+\b")
_ALL_POSITIONS = (
    "compute every position and choose with torch.where or a mask, instead of picking positions "
    "out by their values"
)


@dataclass(frozen=True)
class CodegenFailure:
    """The reason that code generation stopped.

    Attributes:
        text: the text in words.
        cure: the cure; "" where none is known.
        place: the line of the model whose operator it stopped at, where torch tells.
    """

    text: str
    cure: str = ""
    place: SourceLine | None = None


def read_failure(error: BaseException) -> CodegenFailure:
    """Reads what Inductor raised."""
    raw = str(error)
    _, marker, trace = raw.rpartition(_OWN_TRACE)
    place = line_of_trace(trace) if marker else None
    guard, number = _GUARD.search(raw), _NUMBER.search(raw)
    if guard is not None:
        expression, fact = guard[1], f"whether {readable_guard(guard[1], {})}"
    elif number is not None:
        expression, fact = number[1], f"the value of {readable_guard(number[1], {})}"
    else:
        return CodegenFailure(first_line(error), place=place)
    names = list(dict.fromkeys(_UNKNOWN.findall(expression)))
    verb = "depends" if len(names) == 1 else "depend"
    where = f", where {', '.join(names)} {verb} on values in the input" if names else ""
    return CodegenFailure(f"it has to know {fact}{where}", _ALL_POSITIONS, place)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; its type's name if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
