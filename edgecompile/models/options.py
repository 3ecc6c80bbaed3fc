"""Options of loading a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.models.tasks import TASK_NAMES
from edgecompile.runtime.format.dtypes import Number

#: How token embeddings become one, in the order in which sentence-transformers concatenates several.
POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@dataclass(frozen=True)
class LoadOptions:
    """How a model is to be loaded.

    Attributes:
        batch: smallest and largest batch; None: 1 for folders, what it declares for factories.
        max_length: upper limit of the length axis; None: the model's own.
        token_type_ids: whether a folder's model takes them; None: what suits the task.
        pad: pad values by input name, over those that the model declares.
        name: what to call the model; None: made from the specification.
        task: what a folder's model is for, a name of :data:`edgecompile.models.tasks.TASKS`; None: what
            its config.json says.
        pooling: makes one embedding of a text's token embeddings, a name of
            :data:`POOLING_MODES`; for folders without modules.json.
        normalize: divides the embedding by its Euclidean norm.
        softmax: compiles in the softmax behind a classifier.
        image_size: smallest and largest height, and width; None: what the folder says.
        max_context: tokens that a prompt and what follows it may have together, for generation;
            None: what the model allows, at most 2048.
    """

    batch: tuple[int, int] | None = None
    max_length: int | None = None
    token_type_ids: bool | None = None
    pad: Mapping[str, Number] = field(default_factory=dict)
    name: str | None = None
    task: str | None = None
    pooling: str | None = None
    normalize: bool = False
    softmax: bool = False
    image_size: tuple[tuple[int, int], tuple[int, int]] | None = None
    max_context: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The options that change what is computed, as far as they aren't the defaults.

        They travel in a bundle, so that what is compared with it is loaded the same way.
        """
        plain = LoadOptions()
        found = {name: getattr(self, name) for name in _SHAPING}
        if self.image_size is not None:
            found["image_size"] = [list(span) for span in self.image_size]
        return {name: value for name, value in found.items() if value != getattr(plain, name)}

    @classmethod
    def from_json(cls, value: object) -> LoadOptions:
        """The inverse of :meth:`to_json`; what isn't known or has another type is left out."""
        found = value if isinstance(value, Mapping) else {}
        kept: dict[str, Any] = {
            name: found[name]
            for name, kind in _SHAPING.items()
            if isinstance(found.get(name), kind)
        }
        spans = kept.pop("image_size", [])
        if len(spans) == 2 and all(
            isinstance(span, list) and len(span) == 2 and all(type(size) is int for size in span)
            for span in spans
        ):
            kept["image_size"] = (tuple(spans[0]), tuple(spans[1]))
        return cls(**kept)

    def check(self) -> None:
        """Raises a ModelError that lists every option that makes no sense."""
        problems = []
        if self.batch is not None and not 1 <= self.batch[0] <= self.batch[1]:
            problems.append(
                f"the batch range {self.batch[0]}..{self.batch[1]} isn't ascending from 1"
            )
        if self.max_length is not None and self.max_length < 1:
            problems.append(f"the maximum length {self.max_length} isn't 1 or more")
        if self.max_context is not None and self.max_context < 1:
            problems.append(f"the context {self.max_context} isn't 1 or more")
        if self.task is not None and self.task not in TASK_NAMES:
            problems.append(f"there is no task '{self.task}': one of {', '.join(TASK_NAMES)}")
        if problems:
            raise ModelError("; ".join(problems))


#: Options that change what is computed, and the type of each in JSON.
_SHAPING: Mapping[str, type] = {
    "task": str,
    "pooling": str,
    "normalize": bool,
    "softmax": bool,
    "token_type_ids": bool,
    "image_size": list,
    "max_context": int,
}
