"""Drawn requests of the protocol v2, to our server and to a real Triton: their statuses side by side.

    benchmarks/run triton-fuzz --peer PYTHON [--requests 2000] [--seed 1] [--bundle BUNDLE]

PYTHON as for benchmarks/run triton. Each request is a valid one, in JSON or binary, of which one to three
things were changed: a value of its JSON, a key, bytes of the body, the length of the JSON. Prints how often
which statuses met, with the first request of each kind. The exit code is 1 where ours is 500 or none, where both answer
with other numbers, or where a valid request isn't answered right after it.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.serving.ours import build
from benchmarks.serving.protocol.triton import (
    IDS,
    LENGTH,
    PATH,
    Case,
    Servers,
    ask,
    differences,
    entry,
)

#: What takes the place of a value. Sizes that overflow aren't among them: they end Triton's process.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 1.0, 1.5, -0.0, 1e300, 2**31, 2**63, 2**64, "", "1", "x", "INT64", "INT32",
    "FP32", "BYTES", "input_ids", "embedding", [], {}, [1], [3], [1, 3], [[5, 6, 7]], [5, 6, 7], [[5], [6, 7]],
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a document, but for its shapes."""
    ways = [at] if at else []
    items: Any = ()
    if isinstance(value, dict):
        items = [(key, item) for key, item in value.items() if key != "shape"]
    elif isinstance(value, list):
        items = enumerate(value)
    return ways + [place for key, item in items for place in places(item, (*at, key))]


def change(document: Any, draws: random.Random) -> None:
    """One value, or one key, of a document."""
    *way, last = draws.choice(places(document))
    holder = document
    for step in way:
        holder = holder[step]
    kind = draws.randrange(4)
    if kind == 0 and isinstance(holder, dict):
        del holder[last]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(last, copy.deepcopy(holder[last]))
    elif kind == 2 and isinstance(holder, dict):
        holder[draws.choice(["x", "id", "parameters", "outputs", "data"])] = copy.deepcopy(
            draws.choice(VALUES)
        )
    else:
        holder[last] = copy.deepcopy(draws.choice(VALUES))


def valid(draws: random.Random) -> tuple[dict[str, Any], bytes]:
    """The JSON of a request that is answered, and the bytes behind it."""
    tensor, data = entry(), b""
    if draws.random() < 0.4:
        data = np.array(IDS, np.int64).tobytes()
        tensor = entry(data=None, parameters={"binary_data_size": len(data)})
    document: dict[str, Any] = {"inputs": [copy.deepcopy(tensor)]}
    if draws.random() < 0.5:
        document["id"] = "me"
    if draws.random() < 0.5:
        document["outputs"] = [{"name": "embedding"}]
    if draws.random() < 0.3:
        document["parameters"] = {"binary_data_output": draws.random() < 0.5}
    return document, data


def draw(draws: random.Random) -> Case:
    """A request with one to three changes."""
    document, data = valid(draws)
    told = len(data) > 0
    late = []
    for _ in range(draws.choice((1, 1, 1, 2, 3))):
        kind = draws.random()
        if kind < 0.7 and places(document):
            change(document, draws)
        elif kind < 0.8:
            shape = draws.choice(([3], [1, 2], [3, 1], [1, 1, 3], [1, -1], [1, 0], [1, "3"]))
            document["inputs"] = [copy.deepcopy(entry(shape=shape))]
        else:
            late.append(kind)
    head = json.dumps(document).encode()
    length = len(head)
    body = head + data
    for kind in late:
        at = draws.randrange(len(body) + 1)
        if kind < 0.85:
            body = body[:at]
        elif kind < 0.9:
            body = body[:at] + bytes([draws.randrange(256)]) + body[at + 1 :]
        elif kind < 0.95:
            body = body[:at] + draws.choice((b"\0", b"{", b'"', b",", b"\xff", b" ")) + body[at:]
        else:
            length, told = max(1, length + draws.choice((-1, 1, -9, 9, 99))), True
    return Case("drawn", "POST", PATH + "/infer", body, {LENGTH: str(length)} if told else {})


def forms(answer: dict[str, Any]) -> list[bool]:
    """Takes out of an answer which of its outputs came binary."""
    return [item.pop("parameters", None) is not None for item in answer["outputs"]]


def family(status: int) -> str:
    return {0: "no answer", 2: "taken", 4: "refused", 5: "failed"}[status // 100]


def reason(answer: Any) -> str:
    """What an error says, without names and numbers."""
    text = answer.get("error", "") if isinstance(answer, dict) else ""
    text = re.sub(r"input_ids|embedding|mean\w*|0x[0-9a-f]+|-?\d+", "…", str(text))
    return text.replace("|", "/").replace("\n", " ")[:80]


def compare(servers: Servers, count: int, seed: int) -> int:
    """Prints the record; the exit code."""
    draws, good = (
        random.Random(seed),
        Case("", "POST", PATH + "/infer", json.dumps({"inputs": [entry()]}).encode()),
    )
    status, expected = ask(servers.ours, good)
    assert status == 200, expected
    seen, first = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    reasons = Counter[tuple[str, str, str]]()
    bad, ended = 0, 0
    for turn in range(count):
        case = draw(draws)
        (mine, one), (theirs, other) = (ask(port, case) for port in (servers.ours, servers.theirs))
        key = family(mine), family(theirs)
        seen[key] += 1
        first.setdefault(key, repr(case.body[:160]))
        wrong = mine == 0 or mine >= 500
        if key == ("taken", "taken"):
            if forms(one) != forms(other):
                reasons[(*key, "ours or theirs is binary, the other one JSON")] += 1
            wrong |= bool(differences(one, other))
        elif "taken" in key:
            reasons[(*key, reason(one if key[0] != "taken" else other))] += 1
        status, again = ask(servers.ours, good)
        wrong |= status != 200 or again["outputs"] != expected["outputs"]
        if wrong:
            bad += 1
            print(f"{mine} and {theirs}: {case.headers} {case.body!r}")
            print(f"  {one!r:.300}\n  {other!r:.300}")
        if theirs == 0 or ask(servers.theirs, good)[0] != 200:
            ended += 1
            servers.restart_peer()
        if turn % 100 == 99:
            print(f"{turn + 1} requests", file=sys.stderr, flush=True)
    rows = [[*key, f"{n}", first[key].replace("|", "/")] for key, n in seen.most_common()]
    print(f"{count} requests, seed {seed}; Triton had to be started again {ended} times.\n")
    print(table(["ours", "Triton", "requests", "the first one"], rows))
    print("\nWhere one takes what the other doesn't, or they answer in other forms:\n")
    rows = [[*key, f"{n}"] for key, n in reasons.most_common()]
    print(table(["ours", "Triton", "the refusal", "requests"], rows))
    print(f"\n{bad} of our answers are wrong.")
    return int(bad > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", required=True)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Servers(options.bundle or build(Path(folder)), options.peer) as servers,
    ):
        return compare(servers, options.requests, options.seed)


if __name__ == "__main__":
    sys.exit(main())
