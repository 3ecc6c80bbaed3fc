"""Models that generate, by task: the function that makes each of a transformers model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgecompile.loaders.generators.causal import make_generator
from edgecompile.loaders.generators.seq2seq import make_seq2seq
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.tasks import SEQ2SEQ_LM
from edgecompile.runtime.format.schema import CAUSAL_LM

__all__ = ["MAKERS"]

#: By the name of the task; all take what :func:`edgecompile.loaders.generators.causal.make_generator` does.
MAKERS: Mapping[str, Callable[..., LoadedModel]] = {
    CAUSAL_LM: make_generator,
    SEQ2SEQ_LM: make_seq2seq,
}
