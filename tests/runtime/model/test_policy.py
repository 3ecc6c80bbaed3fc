"""A policy's queue, history, averages and normalization, around a function that stands for the model."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgecompile.runtime.base.errors import CopyError, InputError, NativeError
from edgecompile.runtime.model.policy import Policy
from tests.runtime.bundles import DOCUMENT
from tests.runtime.policies import CAMERA, POLICY, STATE, Arrays, StandIn, policy_document

Array = npt.NDArray[Any]
_SHAPES = {"state": [2, 3], "camera": [2, 3, 4, 5], "noise": [1, 4, 2]}
ONE: dict[str, Any] = {
    "observations": {"x": {"input": "x", "scaling": None}},
    "action": {"output": "action", "scaling": None},
    "action_steps": 2,
}


def counting(chunk: int) -> StandIn:
    """Its run number n gives the actions 100 * n + 0, 1, 2 … plus the observation."""
    runs = iter(range(1, 1000))

    def run(inputs: Arrays) -> Arrays:
        rows = 100 * next(runs) + np.arange(chunk, dtype=np.float32)
        return {"action": rows[None, :, None] + inputs["x"][:, None, :]}

    return StandIn(policy_document({"x": [1]}, [chunk, 1], ONE), run)


def whole(steps: int = 2) -> StandIn:
    document = policy_document(_SHAPES, [4, 2], {**POLICY, "action_steps": steps})
    return StandIn(document, lambda x: {"action": np.ones((len(x["noise"]), 4, 2), np.float32)})


def observation(seed: int, *robots: int) -> dict[str, Array]:
    r = np.random.RandomState(seed)
    shapes = {STATE: (3,), CAMERA: (3, 4, 5)}
    return {name: r.rand(*robots, *shape).astype(np.float32) for name, shape in shapes.items()}


def test_actions_come_one_by_one_and_the_model_runs_when_none_is_left() -> None:
    model = counting(3)
    policy = Policy(model)  # type: ignore[arg-type]
    taken = [policy.select_action({"x": [step]}) for step in (0.0, 5.0, 0.25, 9.0)]
    # Two of each chunk's three are performed; observations between runs aren't looked at.
    assert [float(item[0]) for item in taken] == [100, 101, 200.25, 201.25]
    assert all(item.shape == (1,) and item.dtype == np.float32 for item in taken)
    assert len(model.inputs) == 2


@pytest.mark.parametrize(("dtype", "kept"), [("int64", [3, 0]), ("bool", [True, False])])
def test_tokens_stay_whole(dtype: str, kept: list[Any]) -> None:
    document = policy_document({"x": [2]}, [3, 1], ONE)
    document["inputs"][0]["dtype"] = dtype
    model = StandIn(document, lambda x: {"action": np.zeros((len(x["x"]), 3, 1), np.float32)})
    policy = Policy(model)  # type: ignore[arg-type]
    for given in ([3, 0], np.array([[3, 0], [0, 5]], np.int32)):
        policy.reset()
        policy.select_action({"x": given})
        got = model.inputs[-1]["x"]
        assert got.dtype == dtype and got[0].tolist() == kept
    policy.reset()
    with pytest.raises(InputError, match=r"'x' is float64 \[2\], must be whole numbers"):
        policy.select_action({"x": [3.0, 0.0]})


def test_reset_forgets_what_waits() -> None:
    policy = Policy(counting(3))  # type: ignore[arg-type]
    assert policy.select_action({"x": [0.0]}) == 100
    policy.reset()
    assert policy.select_action({"x": [0.0]}) == 200


def test_a_chunk_leaves_the_queue_as_it_is() -> None:
    policy = Policy(counting(3))  # type: ignore[arg-type]
    policy.select_action({"x": [0.0]})
    np.testing.assert_array_equal(policy.predict_chunk({"x": [1.0]}), [[201], [202], [203]])
    assert policy.predict_chunk({"x": [[1.0], [2.0]]}).shape == (2, 3, 1)
    assert policy.select_action({"x": [0.0]}) == 101


def test_a_chunk_leaves_earlier_observations_as_they_are() -> None:
    model = whole(steps=1)
    policy = Policy(model)  # type: ignore[arg-type]
    policy.predict_chunk(observation(9, 2))  # of other robots, before the episode's first step
    policy.select_action(observation(0))
    for seed in (1, 2):
        policy.predict_chunk(observation(seed))
    policy.select_action(observation(3))
    _, first, *chunks, second = (item["state"][0] for item in model.inputs)
    np.testing.assert_array_equal(first[0], first[1])
    for given in (*chunks, second):
        np.testing.assert_array_equal(given[0], first[1])
    assert len({given[1].tobytes() for given in (*chunks, second)}) == 3


@pytest.mark.parametrize("coefficient", [0.01, 0.0, -0.5])
def test_an_ensemble_is_the_mean_of_all_chunks_for_a_step(coefficient: float) -> None:
    model = counting(4)
    policy = {**ONE, "action_steps": 1, "ensemble": coefficient}
    model = StandIn(policy_document({"x": [1]}, [4, 1], policy), model.run)
    acts = Policy(model)  # type: ignore[arg-type]
    for episode in range(2):
        acts.reset()
        chunks: list[Array] = []
        for step in range(10):
            made = acts.select_action({"x": [float(step)]})
            first = 100 * (10 * episode + step + 1) + step
            chunks.append(first + np.arange(4.0))
            ahead = [(k, step - k) for k in range(max(0, step - 3), step + 1)]
            values = np.array([chunks[k][at] for k, at in ahead])
            weights = np.exp(-coefficient * np.arange(len(ahead)))
            assert made == pytest.approx((values * weights).sum() / weights.sum(), rel=1e-5)
    with pytest.raises(InputError, match="of 2 robots, that of the step before of 1"):
        acts.select_action({"x": [[0.0], [0.0]]})


def test_observations_are_normalized_and_the_first_stands_for_earlier_ones() -> None:
    model = whole(steps=1)
    policy = Policy(model)  # type: ignore[arg-type]
    seen = [observation(seed) for seed in range(3)]
    for item in seen:
        policy.select_action(item)
    offset, scale = np.array([1, 2, 3]), np.array([2, 4, 8])
    for index, given in enumerate(model.inputs):
        before = seen[max(index - 1, 0)]
        want = np.stack([(item[STATE] - offset) / scale - 1 for item in (before, seen[index])])
        np.testing.assert_allclose(given["state"], want[None], rtol=1e-6)
        spread = np.array([0.25, 0.5, 0.125]).reshape(3, 1, 1)
        want = np.stack([(item[CAMERA] - 0.5) / spread for item in (before, seen[index])])
        np.testing.assert_allclose(given["camera"], want[None], rtol=1e-6)


def test_observations_count_while_actions_wait() -> None:
    model = whole(steps=2)
    policy = Policy(model)  # type: ignore[arg-type]
    seen = [observation(seed) for seed in range(3)]
    for item in seen:
        policy.select_action(item)
    first, second = model.inputs
    last = second["state"][0] * [2, 4, 8] + [3, 6, 11]
    np.testing.assert_allclose(last, [seen[1][STATE], seen[2][STATE]], atol=1e-5)
    np.testing.assert_array_equal(first["state"][0, 0], first["state"][0, 1])


def test_actions_are_in_the_robots_units() -> None:
    made = Policy(whole()).select_action(observation(0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(made, np.float32([14, 20]))  # (1 + 1) * 2 + 10, (1 + 1) * 0 + 20
    made = Policy(whole()).select_action(observation(0, 2))  # type: ignore[arg-type]
    np.testing.assert_array_equal(made, np.float32([[14, 20]] * 2))


def test_frames_of_a_camera() -> None:
    frame = np.random.RandomState(0).randint(0, 256, (4, 5, 3)).astype(np.uint8)
    plain = np.moveaxis(frame, -1, 0).astype(np.float32) / 255
    models = whole(), whole()
    for model, image in zip(models, (frame, plain), strict=True):
        Policy(model).predict_chunk({**observation(0), CAMERA: image})  # type: ignore[arg-type]
    np.testing.assert_array_equal(*[model.inputs[0]["camera"] for model in models])


def test_noise_is_drawn_by_the_seed_or_given() -> None:
    given = np.ones((1, 1, 4, 2))
    model = whole(steps=1)
    for seed in (7, 7, 8):
        policy = Policy(model, seed)  # type: ignore[arg-type]
        policy.select_action(observation(0))
        policy.select_action(observation(1))
    policy.select_action(observation(2), noise=given)
    noise = [item["noise"] for item in model.inputs]
    np.testing.assert_array_equal(noise[0], noise[2])
    np.testing.assert_array_equal(noise[1], noise[3])
    assert not np.array_equal(noise[0], noise[1])
    assert not np.array_equal(noise[0], noise[4])
    np.testing.assert_array_equal(noise[6], given)
    assert all(item.dtype == np.float32 for item in noise)


def test_what_the_caller_changes_later_does_no_harm() -> None:
    model = whole(steps=1)
    policy = Policy(model)  # type: ignore[arg-type]
    item = observation(0)
    policy.select_action(item)
    item[STATE][:] = 99
    policy.select_action(observation(1))
    np.testing.assert_array_equal(model.inputs[1]["state"][:, 0], model.inputs[0]["state"][:, 1])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({STATE: None}, "the observation has no 'observation.state'"),
        ({STATE: np.zeros(4, np.float32)}, r"float32 \[4\], must be numbers of the shape \[3\]"),
        ({STATE: np.zeros((1, 1, 3))}, r"\[1, 1, 3\], must be numbers of the shape \[3\]"),
        ({STATE: np.zeros((0, 3))}, r"\[0, 3\], must be numbers of"),
        ({STATE: np.zeros((2, 3))}, "different numbers of robots"),
        ({STATE: np.zeros((1, 3))}, "different numbers of robots"),
        ({STATE: ["a", "b", "c"]}, r"must be numbers of the shape \[3\]"),
        ({STATE: np.array([None] * 3)}, r"object \[3\], must be numbers of"),
        ({CAMERA: np.zeros((3, 4, 5), np.uint8)}, r"must be numbers of the shape \[4, 5, 3\]"),
        ({CAMERA: np.zeros((4, 5, 3), np.float32)}, r"must be numbers of the shape \[3, 4, 5\]"),
    ],
)
def test_a_bad_observation_is_refused_and_forgotten(change: dict[str, Any], text: str) -> None:
    model = whole(steps=1)
    policy = Policy(model)  # type: ignore[arg-type]
    policy.select_action(observation(0))
    bad = {**observation(1), **change}
    bad = {name: value for name, value in bad.items() if value is not None}
    with pytest.raises(InputError, match=text):
        policy.select_action(bad)
    policy.select_action(observation(1))
    np.testing.assert_array_equal(model.inputs[1]["state"][:, 0], model.inputs[0]["state"][:, 1])


def test_other_robots_need_another_episode() -> None:
    policy = Policy(whole(steps=1))  # type: ignore[arg-type]
    policy.select_action(observation(0, 2))
    with pytest.raises(InputError, match="is of 1 robots, that of the step before of 2"):
        policy.select_action(observation(0, 1))
    policy.reset()
    assert policy.select_action(observation(0, 1)).shape == (1, 2)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="`noise` is for policies that begin with noise"):
        Policy(counting(3)).select_action({"x": [0.0]}, noise=np.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must be a dict of arrays, not list"):
        Policy(counting(3)).select_action([0.0])  # type: ignore[arg-type]
    for seed in (-1, 2**32, 1.5, "1", True):
        with pytest.raises(InputError, match="`seed` is"):
            Policy(counting(3), seed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tiny: the model is no policy"):
        Policy(StandIn(copy.deepcopy(DOCUMENT), dict))  # type: ignore[arg-type]


def test_a_run_that_fails_changes_nothing() -> None:
    model = whole(steps=1)
    policy = Policy(model)  # type: ignore[arg-type]
    policy.select_action(observation(0))
    good = model._run

    def fail(inputs: Arrays) -> Arrays:
        raise NativeError("no memory")

    model._run = fail
    with pytest.raises(NativeError):
        policy.select_action(observation(5))
    model._run = good
    policy.select_action(observation(1))
    np.testing.assert_array_equal(
        model.inputs[2]["state"][:, 0], model.inputs[0]["state"][:, 1]
    )  # the observation of the failed run isn't among them


def test_one_thread_at_a_time() -> None:
    started, go = threading.Event(), threading.Event()
    model = counting(3)

    def wait(inputs: Arrays) -> Arrays:
        started.set()
        go.wait()
        return {"action": np.zeros((1, 3, 1), np.float32)}

    model._run = wait
    policy = Policy(model)  # type: ignore[arg-type]
    thread = threading.Thread(target=policy.select_action, args=({"x": [0.0]},))
    thread.start()
    started.wait()
    for call in (lambda: policy.select_action({"x": [0.0]}), policy.reset):
        with pytest.raises(InputError, match="the policy is in use by another thread"):
            call()
    go.set()
    thread.join()
    policy.reset()
    with pytest.raises(CopyError):
        copy.copy(policy)
