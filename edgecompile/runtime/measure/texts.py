"""Measures the runs of a language model on a server: parts of prompts, and a token of each of several texts."""

import random
import time
from typing import Any, Callable, Dict, List, Tuple

from ..base.errors import InputError
from ..generation.together import Together
from ..model.model import Model

LEAST_ROUNDS, MOST_ROUNDS = 5, 50
#: Tokens before the measured ones, where the context has the room.
MOST_ROWS = 256


def measure_texts(
    model: Model,
    *,
    seconds: float = 20.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Dict[str, Any]:
    """Times the runs of a language model on all of its threads.

    Args:
        model: an open bundle that generates by a decoder alone.
        seconds: the longest time for measuring; five rounds are made, whatever they take, and 50 at most.
        seed: the seed of the prompts, and of the order of the runs.
        say: a function that gets a line of text.

    Returns:
        ``rows``, the tokens before those of ``steps``; ``prompts``, pairs of the tokens of a run at the beginning
        of a text and its milliseconds, up to the longest run; ``steps``, pairs of the number of texts that a run
        gives a token each and its milliseconds.

    Raises:
        InputError: the context has less than three tokens.
        NativeError: a run failed.
    """
    spec = model.manifest.generation
    assert spec is not None
    most, rows = choose_sizes(model.batch_texts, spec.max_context)
    longest = model.manifest.axes[spec.length_axis].hi
    lengths = sorted({1 << i for i in range(longest.bit_length())} | {longest})
    lengths = [n for n in lengths if n < spec.max_context]
    order, vocabulary = random.Random(seed), int(model.manifest.outputs[0].shape[1])  # type: ignore[arg-type]

    def draw(tokens: int) -> List[int]:
        return order.choices(range(vocabulary), k=tokens)

    together = Together(model) if most > 1 else None
    sessions, prompts = [model.session() for _ in range(most)], [draw(rows) for _ in range(most)]
    reader = model.session()
    how: Dict[str, Any] = {"do_sample": False, "eos": ()}

    def time_prompt(tokens: int) -> float:
        stream = reader.stream(draw(tokens), max_new_tokens=1, **how)
        began = time.perf_counter()
        while stream.run():
            pass
        return (time.perf_counter() - began) * 1e3

    def time_steps() -> List[Tuple[int, float]]:
        """The same texts each time: all but the last token of each prompt is known."""
        streams = [
            session.stream(prompt, max_new_tokens=most + 1, **how)
            for session, prompt in zip(sessions, prompts)
        ]
        for stream in streams:
            next(stream)
        times = []
        for texts in order.sample(range(1, most + 1), most):
            chosen = streams[:texts]
            began = time.perf_counter()
            if texts > 1 and together is not None:
                together.run(chosen)
            else:
                chosen[0].run()
            times.append((texts, (time.perf_counter() - began) * 1e3))
            for stream in chosen:
                next(stream)
        return times

    say("runs of up to {} tokens, and of up to {} texts, {:g} s".format(longest, most, seconds))
    prompt_times: Dict[int, List[float]] = {tokens: [] for tokens in lengths}
    step_times: Dict[int, List[float]] = {texts: [] for texts in range(1, most + 1)}
    began, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() - began < seconds):
        for tokens in order.sample(lengths, len(lengths)):
            prompt_times[tokens].append(time_prompt(tokens))
        for texts, ms in time_steps():
            step_times[texts].append(ms)
        rounds += 1
    return {"rows": rows, "prompts": _usual(prompt_times), "steps": _usual(step_times)}


def choose_sizes(texts: int, max_context: int) -> Tuple[int, int]:
    """The largest number of texts to measure, and the tokens before those that they get.

    Each text gets a token before the first measured run, and one behind every run.

    Args:
        texts: the largest number of texts that the bundle runs at once; 0: it has no program for several.
        max_context: the tokens of the context.

    Raises:
        InputError: the context has less than three tokens.
    """
    if max_context < 3:
        text = "the context has {} tokens; a run behind a prompt is measured from 3 on"
        raise InputError(text.format(max_context))
    most = max(1, min(texts, max_context - 2))
    return most, min(MOST_ROWS, max_context - most - 1)


def _usual(times: Dict[int, List[float]]) -> List[Tuple[int, float]]:
    """The lower quartile of each, without the first: that loads the program."""
    return [
        (key, round(sorted(some[1:])[len(some[1:]) // 4], 6)) for key, some in sorted(times.items())
    ]
