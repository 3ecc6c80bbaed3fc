"""Proves an open model before it serves: golden vectors, rows of batches, and texts."""

from typing import TYPE_CHECKING

from ..base.errors import SelftestError
from ..call.replay import run_cases
from ..call.rows import check_rows
from ..generation.golden import replay_generations

if TYPE_CHECKING:
    from .model import Model


def prove(model: "Model") -> None:
    """Repeats the golden vectors, and rows together and alone.

    Raises:
        SelftestError: they aren't reproduced within their tolerance.
    """
    results = [*run_cases(model), *check_rows(model), *replay_generations(model)]
    if model.encoder is not None:
        results += run_cases(model.encoder)
    failed = [item for item in results if not item["ok"]]
    if failed or not results:
        first = failed[0].get("error", "") if failed else "it has none"
        text = "{}: {} of {} golden vectors failed: {}"
        text = text.format(model.path, len(failed), len(results), first)
        raise SelftestError(text, "python3 BUNDLE selftest shows all of them")
