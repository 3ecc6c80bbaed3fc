"""The results of a verification in numbers and words."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from edgecompile.bundle.verdict import CaseResult, VerifyReport, check_report
from edgecompile.errors import VerificationError
from edgecompile.runtime.format.golden.compare import compare_arrays
from edgecompile.runtime.format.manifest.schema import Tolerance


def report(*differences: float) -> VerifyReport:
    """Of whole numbers, which may not differ at all."""
    results = [
        CaseResult("x86-64-v3", 0, f"case{i}", error, 7.0, error == 0, limit=0.0)
        for i, error in enumerate(differences)
    ]
    return VerifyReport(tuple(results), {}, Tolerance(1e-6, 1e-5), False)


def test_whole_numbers_that_agree_use_nothing_of_what_is_allowed() -> None:
    equal = report(0.0, 0.0)
    assert [equal.used(result) for result in equal.results] == [0.0, 0.0]
    assert equal.ok and json.dumps(equal.to_json())


def test_whole_numbers_that_differ_are_the_worst() -> None:
    mixed = report(0.0, 1.0, 0.0)
    assert mixed.worst == mixed.results[1] and math.isinf(mixed.used(mixed.results[1]))
    assert not mixed.ok


def test_sizes_at_which_eager_gives_nan_have_a_hint_of_their_own() -> None:
    array = np.zeros(2, np.float32)
    verdict = compare_arrays(array, array + np.float32("nan"), Tolerance(1e-6, 1e-5), None)
    mixed = report(0.0, 1.0)
    good, bad = mixed.results
    empty = replace(mixed, results=(good, replace(bad, error=verdict.reason or "")))
    for failed, words in ((empty, "limits="), (mixed, "report the model")):
        with pytest.raises(VerificationError) as caught:
            check_report(failed, packing=True)
        assert words in str(caught.value.hint)
        assert caught.value.differs
    for other in (replace(mixed, results=()), replace(mixed, torch_loaded=True)):
        with pytest.raises(VerificationError) as caught:
            check_report(other, packing=True)
        assert not caught.value.differs, "another precision is no cure"
