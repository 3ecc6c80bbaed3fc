"""An extension of Griffe for the site: our docstrings as it reads them.

They hold roles such as :func:`edgecompile.build`, a section "Example:", and entries for several names, which
may take two lines.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

#: `:class:`~edgecompile.ProgressEvent``: what a documentation tool links.
_ROLE = re.compile(r":(?:class|func|meth|data|attr):`(~?)([\w.]+)`")
#: The names before an entry's colon where they go on in a second line.
_NAMES = re.compile(r"^( +\w+(?:, \w+)*,)\n +(?=\w+(?:, \w+)*:)", re.MULTILINE)


def adapt(text: str) -> str:
    """A docstring in Google's style, with Markdown."""
    text = _ROLE.sub(_link, text)
    text = _NAMES.sub(r"\1 ", text)
    return re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


def _link(match: re.Match[str]) -> str:
    shown = match[2].rpartition(".")[2] if match[1] else match[2]
    # Only what is public has a place on the page.
    if re.fullmatch(r"edgecompile\.\w+", match[2]) and not match[2].endswith(".errors"):
        return f"[`{shown}`][{match[2]}]"
    return f"`{shown}`"


class AdaptDocstrings(griffe.Extension):  # type: ignore[misc]
    """Adapts each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = adapt(obj.docstring.value)
