"""Repeats golden vectors that are the runs of one stream, with the state that the stream keeps."""

import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from ..call.replay import find_cases, run_case
from ..format.manifest.schema import Tolerance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .model import Model

#: What the names of such vectors begin with; the rest is the number of the run.
STEP = "step-"
_NAME = re.compile(STEP + "([0-9]{1,9})")


def check_steps(model: "Model", cases: Optional[str] = None) -> List[Dict[str, Any]]:
    """Runs the vectors ``step-…`` one after the other as a stream, whatever state they hold themselves.

    Args:
        model: the model; [] is the result where it has no state.
        cases: a folder of cases instead of the bundle's own.

    Returns:
        A result for each, as of :func:`.replay.run_cases`; "case" is ``stream-`` and the number. Each step
        may differ by the tolerance once more.
    """
    results: List[Dict[str, Any]] = []
    if not model.manifest.state:
        return results
    names = {item.output: item.input for item in model.manifest.state}
    stream = model.stream()

    def run(_: int, inputs: "Mapping[str, NDArray[Any]]") -> "Dict[str, NDArray[Any]]":
        outputs = stream.run({k: v for k, v in inputs.items() if k not in names.values()})
        state = stream.state
        outputs.update({output: state[name] for output, name in names.items()})
        return outputs

    found = [
        (_NAME.fullmatch(name), bucket, load) for bucket, name, load in find_cases(model, cases)
    ]
    steps = [(int(match.group(1)), bucket, load) for match, bucket, load in found if match]
    for count, (number, bucket, load) in enumerate(sorted(steps, key=lambda step: step[0]), 1):
        atol, rtol = model.tolerance
        wider = Tolerance(count * atol, count * rtol)
        results.append(run_case(model, run, bucket, "stream-{}".format(number), load, wider))
    return results
