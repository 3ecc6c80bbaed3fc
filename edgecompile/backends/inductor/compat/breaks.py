"""Places where torch.compile leaves the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch._dynamo
from torch import Tensor

from edgecompile.backends.inductor.failures import first_line
from edgecompile.errors import CompileError


@dataclass(frozen=True)
class TracingBreak:
    """A place where torch.compile leaves the graph; ``place`` is ``file:line in function``."""

    reason: str
    place: str


def find_breaks(module: torch.nn.Module, inputs: Mapping[str, Tensor]) -> list[TracingBreak]:
    """Traces a module's bytecode and says where it can't go on in one graph.

    Raises:
        CompileError: tracing fails altogether, or the module does.
    """
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            explained = torch._dynamo.explain(module)(**inputs)
    except Exception as error:
        raise CompileError(f"torch can't trace it: {first_line(error)}") from error
    finally:
        torch._dynamo.reset()
    breaks = []
    for item in explained.break_reasons:
        frames = [f"{x.filename}:{x.lineno} in {x.name}: {x.line}" for x in item.user_stack]
        reason = str(item.reason).strip().splitlines()[0]
        if reason.startswith("generic_jump"):
            reason = "control flow depends on the values of a tensor"
        breaks.append(TracingBreak(reason, frames[-1] if frames else ""))
    return breaks
