"""The fake's Input: one shape, a range, or with "profiles" a list of ranges."""

from __future__ import annotations

import os
from typing import Any

_KEYS = ("min_shape", "opt_shape", "max_shape")


class Input:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # As the real one, it takes any keyword and looks at those that it knows.
        shape = args[0] if args else kwargs.get("shape")
        several = "profiles" in os.environ.get("FAKE_TORCH_TENSORRT", "").split(",")
        if shape is not None:
            if any(key in kwargs for key in _KEYS):
                raise ValueError("both a shape and a range were given")
            self.ranges: list[tuple[Any, ...]] = [(tuple(shape),) * 3]
        elif several and "profiles" in kwargs:
            self.ranges = [tuple(tuple(item[key]) for key in _KEYS) for item in kwargs["profiles"]]
        elif all(key in kwargs for key in _KEYS):
            self.ranges = [tuple(tuple(kwargs[key]) for key in _KEYS)]
        else:
            raise ValueError("Missing required arguments for class Input")
        self.dtype = kwargs["dtype"]
