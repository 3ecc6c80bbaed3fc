"""Random draws of tests: the same in every run, unless someone searches for longer."""

from __future__ import annotations

from hypothesis import settings

#: hypothesis' profiles: the one in use unless --hypothesis-profile names another, that of scripts/test
#: without arguments, and the search.
REPEATABLE, QUICK, SEARCH = "repeatable", "quick", "search"

_USUAL = 100  # hypothesis' own number of examples


def register_profiles() -> None:
    """Makes the profiles known and loads the repeatable one."""
    settings.register_profile(
        REPEATABLE, derandomize=True, print_blob=True, deadline=None, max_examples=_USUAL
    )
    settings.register_profile(
        QUICK, derandomize=True, print_blob=True, deadline=None, max_examples=_USUAL // 4
    )
    # Every run draws others, and what fails is printed with what repeats it.
    settings.register_profile(
        SEARCH, derandomize=False, print_blob=True, deadline=None, max_examples=20 * _USUAL
    )
    settings.load_profile(REPEATABLE)


def examples(count: int) -> int:
    """The examples of a test that wants another number than most; a quick run has fewer, a search more."""
    return count * settings.default.max_examples // _USUAL
