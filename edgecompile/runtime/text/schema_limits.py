"""Limits on JSON schemas, for that which llguidance doesn't bound itself.

It follows a schema by recursion, and its references too: a few thousand levels end the process. It counts the
residues of each ``multipleOf``, with a state for each: a few million of them take all memory.
"""

from decimal import Decimal
from math import gcd
from typing import Any, Dict, Iterator, List, Mapping, Set

from ..base.errors import ConstraintError

#: It bears over three times as many on a thread's usual stack of 8 MB.
MAX_LEVELS = 600
#: Of the schema as it is written; more than serde, which llguidance reads it with, takes.
MAX_NESTED = 100
#: The least common multiple of all numbers that values must be multiples of, 0.05 counting as 5.
MAX_MULTIPLE = 10_000
#: That multiple times the objects in the schema: each may get states of its own, within a second or two.
MAX_STATES = 200_000
#: Keywords whose values have schemas by names, and those whose values are no schemas at all.
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")  # fmt: skip
DATA = ("const", "enum", "default", "examples")


def check_schema(schema: Mapping[str, Any], name: str = "json_schema") -> None:
    """Raises ConstraintError where a schema, of some kilobytes, may take more than there is.

    The bound on levels is the sum of the schema's own levels and of those behind each of its references, as all
    may stand in one chain.

    Args:
        schema: a schema as JSON is read.
        name: name of the schema in errors.
    """
    levels: Dict[int, int] = {}
    references: Set[str] = set()
    total = _measure(schema, 1, levels, references, name)
    for reference in references:
        total += 1 + levels.get(id(_resolve(schema, reference)), 0)
        if total > MAX_LEVELS:
            text = "{} has {} references, of over {} levels in all, which is the limit"
            raise ConstraintError(text.format(name, len(references), MAX_LEVELS))
    check_multiples(schema, name)


def _measure(
    value: Any, level: int, levels: Dict[int, int], references: Set[str], name: str
) -> int:
    """How deep a value is nested: for it and for each one in it, by their ids; and the references in it."""
    if isinstance(value, Mapping):
        reference = value.get("$ref")
        if isinstance(reference, str):
            references.add(reference)
        inner = list(value.values())
    elif isinstance(value, (list, tuple)):
        inner = list(value)
    else:
        return 0
    if level > MAX_NESTED:
        text = "{} is nested in {} levels or more, the limit is {}"
        raise ConstraintError(text.format(name, level, MAX_NESTED))
    depths = [_measure(item, level + 1, levels, references, name) for item in inner]
    levels[id(value)] = 1 + max(depths, default=0)
    return levels[id(value)]


def _resolve(schema: Mapping[str, Any], reference: str) -> Any:
    """The part of the schema that a reference names; the whole schema if it isn't found, which is as deep as any part."""
    value: Any = schema
    for name in _split(reference):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return schema
    return value


def _split(reference: str) -> List[str]:
    path = reference.partition("#")[2].split("/")[1:]
    return [name.replace("~1", "/").replace("~0", "~") for name in path]


def _is_schema(reference: str) -> bool:
    """Whether a reference is known to stand for what is a schema where it is written."""
    if not (reference == "#" or reference.startswith("#/")) or "%" in reference:
        return False
    named = False
    for name in _split(reference):
        if not named and name in DATA:
            return False
        named = not named and name in NAMED
    return not named


def check_multiples(schema: Mapping[str, Any], name: str) -> None:
    """Raises ConstraintError where ``multipleOf`` takes too many states; the arguments of ``check_schema``."""
    parts = list(_find_parts(schema, everywhere=True))
    references = [item["$ref"] for item in parts if isinstance(item.get("$ref"), str)]
    # A reference to what is no schema where it stands makes it one.
    read = _find_parts(schema, everywhere=not all(map(_is_schema, references)))
    numbers = [item.get("multipleOf") for item in read]
    multiple = 1
    for number in numbers:
        if not isinstance(number, (int, float)):
            continue  # the schema of a property of this name
        one = abs(number if isinstance(number, int) else _scale(number)) or 1
        multiple = multiple // gcd(multiple, one) * one
        if multiple > MAX_MULTIPLE:
            text = "{}: with multipleOf {} the least common multiple of all is over {}, the limit"
            raise ConstraintError(text.format(name, str(number)[:40], MAX_MULTIPLE))
    if multiple > 1 and multiple * len(parts) > MAX_STATES:
        text = "{}: {} objects times {}, the least common multiple of all multipleOf, is over {}, the limit"
        raise ConstraintError(text.format(name, len(parts), multiple, MAX_STATES))


def _find_parts(schema: Any, everywhere: bool) -> Iterator[Mapping[str, Any]]:
    """The schemas within a schema; ``everywhere``: all objects, also those that are no schemas."""
    waiting = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (list, tuple)):
            waiting += item
        if not isinstance(item, Mapping):
            continue
        yield item
        for key, value in item.items():
            if key in NAMED and isinstance(value, Mapping) and not everywhere:
                waiting += value.values()
            elif everywhere or key not in DATA:
                waiting.append(value)


def _scale(number: float) -> int:
    """A number as an integer: a whole one as it is, and another one without its point."""
    if number.is_integer():
        return int(number)
    return int("".join(map(str, Decimal(repr(number)).as_tuple().digits)))
