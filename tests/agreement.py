"""Where the Python runtime and the C runtime have to agree about a bundle, and where they needn't.

Python names every broken rule, the C runtime the first that it meets. It leaves some sections of the manifest
to its caller (of "generation" it checks what a run depends on, the others it hands on or doesn't read) and
some rules to Python, as nothing in it depends on them. Of all else both have to find the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Sections of which the C runtime checks less than Python does.
SECTIONS = (
    "generation",
    "text",
    "labels",
    "policy",
    "ranges",
    "speech",
    "golden",
    "plan",
    "expected",
)
#: The one of them in which it may still find something.
CHECKED = "generation"
#: The rules of that one which it checks, all or in part; docs/c-runtime.md names the others.
CHECKED_RULES = frozenset(
    {
        *("key-type", "key-missing", "list-size", "generation-kind", "generation-axes"),
        *("generation-inputs", "generation-shape", "generation-states", "generation-buckets"),
        "generation-scales",
    }
)
#: Rules that it doesn't check: no name that breaks this one is that of a constant of a program.
LEFT = frozenset({"weights-name"})
#: The rule that Python looks at only where those hold.
HIDDEN = "weights-layout"
BUNDLE = 20
#: The rule with that status which is about no manifest.
BEHIND = "program-signature"

_RULE = re.compile(r"\[([a-z0-9]+-[a-z0-9-]+)\]")
_PLACE = re.compile(rf"(?:.*?manifest\.json: |\s*)({'|'.join(SECTIONS)})[.\[:]")


def named_rules(message: str) -> frozenset[str]:
    """The ids of the rules that a message names; "generation:key-type" of one in such a section.

    Lines end with "\\n", or with a vertical tab, as host_cases.c writes them.
    """
    names = set()
    for line in re.split("[\n\v]", message):
        place = _PLACE.match(line)
        section = f"{place.group(1)}:" if place else ""
        names.update(section + rule for rule in _RULE.findall(line))
    return frozenset(names)


class Verdict(NamedTuple):
    """How a bundle was refused; status 0 if it was opened."""

    status: int
    rules: frozenset[str]

    def sections(self) -> frozenset[str]:
        """The sections that one of the rules was broken in."""
        return frozenset(rule.partition(":")[0] for rule in self.rules if ":" in rule)


def agree(python: Verdict, c: Verdict) -> bool:
    """Whether the C runtime says of a bundle what it has to, where Python says this."""
    if len(c.rules) > 1 or c.sections() - {CHECKED}:
        return False
    if not python.rules:
        return c == python
    if c.rules and (c.rules <= python.rules or (_is_json(c) and _is_json(python))):
        return c.status == python.status
    left = frozenset(rule for rule in python.rules if ":" in rule or rule in LEFT)
    if left != python.rules or (
        c.status == BUNDLE and python.sections() == {CHECKED} and c.sections()
    ):
        return False
    if python.rules & LEFT and c.rules == {HIDDEN}:
        return c.status == python.status
    if python.rules & LEFT and c.status == BUNDLE and c.rules != {BEHIND}:
        return False
    # Refused for what the C runtime leaves alone: it goes on to what comes next, the weights among it.
    behind = c.rules == {BEHIND} or all(rule.startswith(("weights-", "json-")) for rule in c.rules)
    return c.status != BUNDLE or behind or bool(c.sections())


def _is_json(verdict: Verdict) -> bool:
    """Whether the text is no JSON: what is wrong with it first depends on the parser."""
    return all(rule.startswith("json-") for rule in verdict.rules)
