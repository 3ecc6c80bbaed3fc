"""The options of a generation, as the caller gives them."""

from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence, Union

if TYPE_CHECKING:
    from .constraint import Constraint

Stops = Union[int, Sequence[Union[int, Sequence[int]]]]
Ends = Union[int, Sequence[int]]


class Options(NamedTuple):
    """The arguments of ``Generator.generate`` beside a prompt; None: the bundle's default."""

    max_new_tokens: Optional[int] = None
    do_sample: Optional[bool] = None
    temperature: Optional[float] = None
    top_k: Optional[int] = None
    top_p: Optional[float] = None
    repetition_penalty: Optional[float] = None
    seed: Optional[int] = None
    stop: Stops = ()
    eos: Optional[Ends] = None
    constraint: "Optional[Constraint]" = None
    lookup: bool = False
