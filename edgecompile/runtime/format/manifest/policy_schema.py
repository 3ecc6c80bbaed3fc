"""The manifest's ``policy`` as named tuples: how a robot's observations become actions."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from ..dtypes import Number


class Scaling(NamedTuple):
    """A normalization: ``(x - offset) / scale - shift``, and back ``(y + shift) * scale + offset``.

    ``offset`` and ``scale`` have one number for all of a value, or one for each item of its first dimension.
    """

    offset: Tuple[Number, ...]
    scale: Tuple[Number, ...]
    shift: Number


class ObservationSpec(NamedTuple):
    """The input that an observation becomes, and its normalization; None: it stays as it is."""

    input: str
    scaling: Optional[Scaling]


class PolicySpec(NamedTuple):
    """The way from observations to actions.

    ``observations`` has the names that callers use. ``steps`` is how many observations in a row each input
    has in its second dimension; 0: it has one, without that dimension. ``output`` is the chunk of actions,
    [batch, actions, size], and ``scaling`` its normalization; ``action_steps`` of them are performed before the
    next run. With ``ensemble`` the chunks that overlap are averaged instead, with the weights exp(-ensemble * i),
    where i is 0 for the oldest. ``noise`` is the input that gets normal random numbers.
    """

    observations: Mapping[str, ObservationSpec]
    output: str
    scaling: Optional[Scaling]
    action_steps: int
    steps: int = 0
    ensemble: Optional[Number] = None
    noise: Optional[str] = None

    def to_json(self) -> Dict[str, Any]:
        """The manifest's entry."""
        entry: Dict[str, Any] = {
            "observations": {
                name: {"input": item.input, "scaling": _plain(item.scaling)}
                for name, item in self.observations.items()
            },
            "action": {"output": self.output, "scaling": _plain(self.scaling)},
            "action_steps": self.action_steps,
        }
        rest = {"steps": self.steps or None, "ensemble": self.ensemble, "noise": self.noise}
        return {**entry, **{key: value for key, value in rest.items() if value is not None}}


def _plain(scaling: Optional[Scaling]) -> Optional[Dict[str, Any]]:
    if scaling is None:
        return None
    offset, scale, shift = scaling
    return {"offset": list(offset), "scale": list(scale), "shift": shift}
