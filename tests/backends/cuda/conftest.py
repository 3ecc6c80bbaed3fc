"""Triton for the tests of this folder, which import kernels when they are collected."""

import importlib.util

from tests.needs import in_ci, provide

if importlib.util.find_spec("triton") is None and not provide("triton") and in_ci():
    raise RuntimeError("Triton can't be installed; in CI that is no reason to skip")
importlib.invalidate_caches()
