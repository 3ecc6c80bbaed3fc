"""The limit on a JSON schema's levels, references included.

llguidance follows a schema by recursion, and its references too: a few thousand levels end the process.
"""

from typing import Any, Dict, List, Mapping, Set, Tuple

from ..base.errors import ConstraintError

#: It bears over three times as many on a thread's usual stack of 8 MB.
MAX_LEVELS = 600
#: Of the schema as it is written; more than serde, which llguidance reads it with, takes.
MAX_NESTED = 100


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ConstraintError where a schema may have more levels than can be followed.

    The bound is the sum of the schema's own levels and of those behind each of its references, as all may
    stand in one chain.
    """
    levels, references = _measure(schema)
    if levels > MAX_NESTED:
        raise ConstraintError(
            "json_schema is nested in {} levels or more, the limit is {}".format(levels, MAX_NESTED)
        )
    total, known = levels, {id(schema): levels}
    for reference in references:
        target = _resolve(schema, reference)
        if id(target) not in known:
            known[id(target)] = _measure(target)[0]
        total += 1 + known[id(target)]
        if total > MAX_LEVELS:
            text = "json_schema has {} references, of over {} levels in all, which is the limit"
            raise ConstraintError(text.format(len(references), MAX_LEVELS))


def _measure(value: Any) -> Tuple[int, Set[str]]:
    """How deep a value is nested, at most one more than the limit, and the references in it."""
    deepest, references = 0, set()
    waiting: List[Tuple[Any, int]] = [(value, 1)]
    while waiting:
        item, level = waiting.pop()
        if isinstance(item, Mapping):
            reference = item.get("$ref")
            if isinstance(reference, str):
                references.add(reference)
            inner = list(item.values())
        elif isinstance(item, (list, tuple)):
            inner = list(item)
        else:
            continue
        deepest = max(deepest, level)
        if level > MAX_NESTED:
            break
        waiting += [(each, level + 1) for each in inner]
    return deepest, references


def _resolve(schema: Mapping[str, Any], reference: str) -> Any:
    """What a reference stands for; the whole schema where it isn't found, which is as deep as any part."""
    value: Any = schema
    path = reference.partition("#")[2]
    for name in path.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        names: Dict[str, Any] = dict(value) if isinstance(value, Mapping) else {}
        if name not in names:
            return schema
        value = names[name]
    return value
