"""The attempts at building an engine, each asking for less memory than the one before."""

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from ..format.recipe.schema import Recipe, ShapeRange

#: Below this TensorRT finds no kernel for large layers.
LEAST_WORKSPACE = 64 << 20
_LOW_LEVEL = 1

Group = Tuple[int, ...]


class Way(NamedTuple):
    """Limits on an engine: narrower after each engine that was built and can't be used.

    ``profiles``: how many at most. ``pinned``: whether the recipe's values stay float32 where the builder
    chooses types.
    """

    profiles: int
    pinned: bool = False

    def __str__(self) -> str:
        text = "at most {} profile{}".format(self.profiles, "" if self.profiles == 1 else "s")
        return text + (", some values pinned to float32" if self.pinned else "")


@dataclass(frozen=True)
class Attempt:
    """One attempt. ``groups`` holds the buckets that each profile serves, in order; those of a graph are neighbours."""

    workspace_bytes: int
    optimization_level: int
    groups: Tuple[Group, ...]

    def profile_of(self) -> Tuple[int, ...]:
        """The profile of each bucket."""
        owner = {bucket: index for index, group in enumerate(self.groups) for bucket in group}
        return tuple(owner[bucket] for bucket in range(len(owner)))

    def groups_text(self) -> str:
        """Buckets that share a profile joined by +: ``0+1, 2``."""
        return ", ".join("+".join(str(bucket) for bucket in group) for group in self.groups)

    def to_json(self) -> Dict[str, Any]:
        """{"workspace_bytes", "optimization_level", "profiles"}, the last a number."""
        return {
            "workspace_bytes": self.workspace_bytes,
            "optimization_level": self.optimization_level,
            "profiles": len(self.groups),
        }

    def __str__(self) -> str:
        text = "workspace {} MiB, optimization level {}, {} profile{}"
        count = len(self.groups)
        return text.format(
            self.workspace_bytes >> 20, self.optimization_level, count, "" if count == 1 else "s"
        )


def list_attempts(recipe: Recipe, workspace: int, level: int, profiles: int) -> Iterator[Attempt]:
    """The attempts in their order: less workspace, a lower level, then fewer profiles.

    Workspace comes first because it costs the least speed: kernels that need more are left out. The
    level decides how many kernels are tried at once, and profiles multiply the work of the builder
    and what its engine holds; buckets that share one run kernels that were chosen for the larger.

    Args:
        recipe: the recipe of the bundle.
        workspace: bytes of the first attempt.
        level: optimization level of the first attempt.
        profiles: the number of profiles that the first attempt may have.
    """
    # Neighbours in size are merged, whatever order the manifest has them in; of one graph alone.
    volumes = [_volume(profile) for profile in recipe.profiles]
    sides: List[Tuple[Group, ...]] = [
        tuple((bucket,) for bucket in graph.buckets) for graph in recipe.graphs
    ]
    groups: Tuple[Group, ...] = sum(sides, ())
    while len(groups) > max(profiles, len(sides)):
        sides = [_merge(side, volumes) for side in sides]
        groups = sum(sides, ())
    yield Attempt(workspace, level, groups)
    least = min(workspace, LEAST_WORKSPACE)
    quarter = max(workspace // 4, least)
    if quarter < workspace:
        yield Attempt(quarter, level, groups)
    low = min(level, _LOW_LEVEL)
    if low < level or least < quarter:
        yield Attempt(least, low, groups)
    while len(groups) > len(sides):
        sides = [_merge(side, volumes) for side in sides]
        groups = sum(sides, ())
        yield Attempt(least, low, groups)


def _merge(groups: Tuple[Group, ...], volumes: Sequence[int]) -> Tuple[Group, ...]:
    """Half as many groups."""
    ordered = sorted(groups, key=lambda group: (volumes[group[0]], group))
    return tuple(
        tuple(sorted(sum(ordered[start : start + 2], ()))) for start in range(0, len(ordered), 2)
    )


def merge_profiles(
    profiles: Sequence[Mapping[str, ShapeRange]], groups: Sequence[Group]
) -> List[Dict[str, ShapeRange]]:
    """One profile per group that covers those of its buckets, tuned for the largest of them."""
    result = []
    for group in groups:
        members = [profiles[bucket] for bucket in group]
        largest = max(members, key=_volume)
        merged = {}
        for name in members[0]:
            least = [item[name].min for item in members]
            most = [item[name].max for item in members]
            merged[name] = ShapeRange(
                tuple(min(sizes) for sizes in zip(*least)),
                largest[name].opt,
                tuple(max(sizes) for sizes in zip(*most)),
            )
        result.append(merged)
    return result


def _volume(profile: Mapping[str, ShapeRange]) -> int:
    """The number of elements of the largest inputs."""
    total = 0
    for shapes in profile.values():
        count = 1
        for size in shapes.max:
            count *= size
        total += count
    return total
