"""Inputs that were checked once are run as they are, by the bundle that checked them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import InputError, open_bundle

IDS = {"input_ids": np.array([[2, 5, 3]], np.int64), "attention_mask": np.ones((1, 3), np.int64)}


def test_what_was_checked_is_not_checked_again(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_bundle(tiny_bundle) as model, open_bundle(tiny_bundle) as other:
        names = {spec.name for spec in model.manifest.inputs}
        inputs = {name: array for name, array in IDS.items() if name in names}
        expected = model.run(inputs)
        checked = model.check_once(inputs)
        assert checked.keys() == model.check_inputs(inputs).keys()
        assert 3 in checked.sizes.values()

        def refuse(given: Any) -> Any:
            raise InputError("checked again")

        for each in (model, other):
            monkeypatch.setattr(each._checker, "check", refuse)
        got = model.run(checked)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)
        with pytest.raises(InputError, match="checked again"):
            model.run(dict(checked))
        with pytest.raises(InputError, match="checked again"):
            other.run(checked)


def test_what_is_wrong_is_refused(tiny_bundle: Path) -> None:
    with open_bundle(tiny_bundle) as model:
        wrong = {spec.name: np.full((1, 3), 10**9) for spec in model.manifest.inputs}
        with pytest.raises(InputError, match="values lie outside"):
            model.check_once(wrong)
