"""Compares what two versions of a model take and give: callers of one must be able to call the other."""

from typing import Dict, List

from ..base.errors import BundleError
from ..format.manifest.schema import Manifest, TensorSpec


def check_interface(old: Manifest, new: Manifest, path: str) -> None:
    """Checks that calls of the old version are calls of the new one.

    Ranges of sizes aren't compared: a new plan may have other buckets, and a call outside them is refused by itself.

    Args:
        old: the manifest of the version that serves.
        new: the manifest of the version in its place.
        path: the new version, for messages.

    Raises:
        BundleError: they differ; lists all differences.
    """
    problems: List[str] = []
    if old.name != new.name:
        problems.append("is of the model {}, not of {}".format(new.name, old.name))
    for what, before, after in (
        ("input", old.inputs, new.inputs),
        ("output", old.outputs, new.outputs),
    ):
        found = {item.name: item for item in after}
        for item in before:
            other = found.get(item.name)
            if other is None:
                problems.append("has no {} {}".format(what, item.name))
            elif not (_fits(other, item) if what == "input" else _fits(item, other)):
                text = "{} {} is {}, was {}"
                problems.append(text.format(what, item.name, _show(other), _show(item)))
    given = _without_default(old)
    problems += ["wants an input {}".format(n) for n in _without_default(new) if n not in given]
    parts = _parts(new)
    problems += [
        "{} {}".format("is no longer" if given else "has become", text)
        for text, given in _parts(old).items()
        if given != parts[text]
    ]
    if problems:
        hint = "open it in a new process, whose program knows what it takes and gives"
        raise BundleError(
            "\n  ".join(
                ["{}: can't take the place of the version that runs:".format(path), *problems]
            ),
            hint,
        )


def _fits(wide: TensorSpec, narrow: TensorSpec) -> bool:
    """Whether the types are alike, and ``wide`` has the sizes of ``narrow`` or leaves them open."""
    if (wide.dtype, len(wide.shape)) != (narrow.dtype, len(narrow.shape)):
        return False
    pairs = zip(wide.shape, narrow.shape)
    return all(size == other for size, other in pairs if isinstance(size, int))


def _show(item: TensorSpec) -> str:
    return "{}{}".format(item.dtype, list(item.shape)).replace("'", "")


def _without_default(manifest: Manifest) -> List[str]:
    return [item.name for item in manifest.inputs if item.default is None]


def _parts(manifest: Manifest) -> Dict[str, bool]:
    """The kinds of calls that not every model has."""
    return {
        "a language model": manifest.generation is not None,
        "a model of texts": manifest.text is not None,
        "a model of recordings": manifest.speech is not None,
        "a policy": manifest.policy is not None,
        "a model with state": bool(manifest.state),
    }
