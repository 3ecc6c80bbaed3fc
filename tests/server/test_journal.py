"""Which requests were running when a worker died."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgecompile.server.errors import NotReady, Quarantined
from edgecompile.server.journal import HOLD_S, Journal, Suspects, digest


class Ran:
    """What the journal asks of a model."""

    broken: str | None = None


WELL: Any = Ran()


@pytest.fixture
def files() -> Iterator[tuple[Suspects, list[int]]]:
    """The supervisor's side, with the files of three workers."""
    suspects = Suspects()
    made = [suspects.new_file() for _ in range(3)]
    yield suspects, made
    for file in made:
        os.close(file)


def die(journal: Journal, *keys: bytes) -> None:
    """The worker dies while these run: what it noted stays."""
    journal.running(keys, WELL).__enter__()


def key(*ids: int) -> bytes:
    return digest("tiny", {"input_ids": np.array([ids])})


def test_requests_are_told_apart_by_all_of_them() -> None:
    ids = np.arange(6, dtype=np.int64)
    arrays = [ids, ids.astype(np.int32), ids.reshape(2, 3), ids[::-1], ids[:5]]
    made = {digest("tiny", {"ids": array}) for array in arrays}
    made |= {digest("tiny", {"x": ids}), digest("other", {"ids": ids})}
    assert len(made) == 7 and digest("tiny", {"ids": np.arange(6)}) in made


def test_what_killed_two_workers_is_refused_for_a_while(
    files: tuple[Suspects, list[int]],
) -> None:
    suspects, (first, second, third) = files
    for file in (first, second):
        journal = Journal(file)
        with journal.running([key(9)], WELL):
            pass  # it ended
        journal.check(key(1))
        die(journal, key(1), key(2 + file))
        suspects.add(file, 100.0)
        suspects.write(third)
    journal = Journal(third)
    with pytest.raises(Quarantined, match="2 processes died"):
        journal.check(key(1))
    for innocent in (key(9), key(2 + first), key(2 + second)):
        journal.check(innocent)
    assert not suspects.expire(100.0 + HOLD_S)
    assert suspects.expire(101.0 + HOLD_S)
    suspects.write(third)
    journal.check(key(1))


def test_what_broke_the_gpu_is_suspected_and_nothing_after_it(
    files: tuple[Suspects, list[int]],
) -> None:
    suspects, (first, second, _) = files
    journal, model = Journal(first), Ran()
    with journal.running([key(1)], model):  # type: ignore[arg-type]
        pass
    with pytest.raises(RuntimeError), journal.running([key(2)], model):  # type: ignore[arg-type]
        model.broken = "an assertion failed"
        raise RuntimeError
    with pytest.raises(NotReady, match="an assertion failed"):
        journal.running([key(3)], model)  # type: ignore[arg-type]
    suspects.add(first, 1.0)
    suspects.write(second)
    assert dict(Journal(second).suspects()) == {key(2): 1}


def test_a_suspect_that_runs_well_is_none(files: tuple[Suspects, list[int]]) -> None:
    suspects, (first, second, _) = files
    die(Journal(first), key(1))
    assert suspects.add(first, 1.0) == 0
    suspects.write(second)
    told: list[bytes] = []
    journal = Journal(second, told.append)
    assert dict(journal.suspects()) == {key(1): 1}
    journal.clear(key(2))
    journal.clear(key(1))
    assert told == [key(1)] and not journal.suspects()
    suspects.clear(key(1))
    assert suspects.add(first, 2.0) == 0


def test_more_run_than_there_is_room_for(files: tuple[Suspects, list[int]]) -> None:
    suspects, (first, second, _) = files
    journal = Journal(first)
    die(journal, *(key(n) for n in range(3000)))
    with journal.running([key(5000)], WELL):
        pass
    suspects.add(first, 1.0)
    suspects.write(second)
    assert 0 < len(Journal(second).suspects()) <= 256


def test_without_a_file_nothing_is_noted() -> None:
    journal = Journal()
    with journal.running([b""], WELL):
        journal.check(b"")
    assert not journal.notes and not journal.suspects()
