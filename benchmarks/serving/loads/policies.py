"""Rules of what runs next, side by side in our own scheduler on a real bundle, without a network.

Saturated: all requests at once, until all are answered. Overload: requests at random times, faster than
the server can, each with a deadline. Rounds interleave the rules, so that a machine that grows slower
meanwhile is so for all of them. With ``--model`` or ``--onnx`` text-embeddings-inference's rule is run twice: with our
engine, which tells what rules differ by, and with ONNX Runtime, which is how that server runs on a CPU
(around.py). Texts of a length are several that differ, and every answer is compared with that of
its text alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.serving.loads.around import AroundOnnx, open_onnx
from benchmarks.serving.loads.arrivals import QUERIES, percentiles, read_lengths
from benchmarks.serving.loads.offline import offline_seconds
from benchmarks.serving.loads.policies_page import render, write_drawings
from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.server.errors import ServerError
from edgecompile.server.schedule.compose import compose
from edgecompile.server.schedule.costs import CostTable, read_costs
from edgecompile.server.schedule.scheduler import Scheduler
from edgecompile.server.schedule.simulate import (
    POLICIES,
    Arrival,
    draw_trace,
    make_queue,
    simulate,
)
from edgecompile.server.schedule.streams import plan_streams

TRAFFICS = ("mixed", "queries")

#: So many texts of a length differ, so that an answer of another one is seen.
DIFFERENT = 16
#: The best batches of all requests, known beforehand.
OFFLINE = "offline"

#: text-embeddings-inference's rule with the engine that it has.
AROUND = "tei around onnxruntime"


class Bench:
    """A bundle with its costs, and what is measured of it.

    Attributes:
        rules: names of ``POLICIES``, and ``AROUND`` where there is an ONNX file.
    """

    def __init__(
        self, model: Model, costs: Mapping[str, Any], slo: float, onnx: Path | None
    ) -> None:
        self.model, self.slo = model, slo
        self.around: AroundOnnx | None = None if onnx is None else open_onnx(model, onnx)
        self.rules = [*POLICIES, *([AROUND] if onnx else [])]
        self.answers: dict[tuple[int, int], Any] = {}
        self.cpus = int(model.info["threads"])
        manifest = model.manifest
        self.axis = next(iter(set(manifest.axes) - {manifest.length_axis}))
        self.table: CostTable = read_costs(
            costs, most_rows=manifest.axes[self.axis].hi, longest=manifest.axes["length"].hi
        )
        self.costs = dict(costs, padding="proven")
        self.inputs: dict[tuple[int, int, int], dict[str, Any]] = {}

    def request(self, length: int, index: int = 0, rows: int = 1) -> dict[str, Any]:
        """Inputs of this size, made once; those of neighbouring indices differ."""
        variant = index % DIFFERENT
        key = (rows, length, variant)
        if key not in self.inputs:
            sizes = {self.axis: rows, str(self.model.manifest.length_axis): length}
            seed = length * DIFFERENT + variant
            self.inputs[key] = make_inputs(self.model.manifest, sizes, seed)
        return self.inputs[key]

    def error(self, length: int, index: int, answer: Any) -> float:
        """How far an answer is from that of its text alone, of the largest magnitude of that."""
        key = (length, index % DIFFERENT)
        if key not in self.answers:
            outputs = self.model.run(self.request(length, index))
            self.answers[key] = next(iter(outputs.values())).copy()
        expected = self.answers[key]
        output = next(iter(answer.outputs.values()))
        return float(abs(output - expected).max() / abs(expected).max())

    def scheduler(self, policy: str, lengths: Mapping[int, int], slo: float | None) -> Scheduler:
        """A fresh one."""
        model: Any = self.model
        if policy == AROUND:
            model, policy = self.around, "tei"
        many = [n for n, count in lengths.items() for _ in range(count)]
        costs = dict(self.costs, length_percentiles=percentiles(many))
        return Scheduler(model, queue=1 << 20, costs=costs, policy=policy, slo=slo)

    async def saturate(
        self, policy: str, lengths: Mapping[int, int], count: int, seed: int
    ) -> dict[str, Any]:
        """All requests at once."""
        trace = draw_trace(lengths, count, seed=seed)
        requests = [self.request(item.length, index) for index, item in enumerate(trace)]
        scheduler = self.scheduler(policy, lengths, None)
        busy, began = time.process_time(), time.perf_counter()
        answers = await asyncio.gather(*scheduler.submit_all(requests))
        took, cpu = time.perf_counter() - began, time.process_time() - busy
        await scheduler.close()
        pairs = enumerate(zip(trace, answers, strict=True))
        return {
            "texts_per_s": count / took,
            "cpu_s": cpu,
            "error": max(self.error(item.length, i, answer) for i, (item, answer) in pairs),
            "batches": dict(sorted(scheduler.batches.items())),
            "streams": scheduler.streams and [scheduler.streams.count, scheduler.streams.threads],
            "speed": scheduler.speed.factor,
        }

    def offline(self, lengths: Mapping[int, int], count: int, seed: int) -> dict[str, Any]:
        """The best batches of all requests, known beforehand, on as many parts as planned."""
        trace = sorted(item.length for item in draw_trace(lengths, count, seed=seed))
        streams = plan_streams(self.table, self.cpus, lengths)
        work = [
            (end - first, trace[end - 1])
            for first, end in compose(self.table, streams.threads, trace)
        ]
        random.Random(seed).shuffle(work)
        for rows, length in work:
            self.request(length, rows=rows)
        lock = threading.Lock()

        def run() -> None:
            while True:
                with lock:
                    if not work:
                        return
                    rows, length = work.pop()
                self.model.run(self.request(length, rows=rows), threads=streams.threads)

        threads = [threading.Thread(target=run) for _ in range(streams.count)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"texts_per_s": count / (time.perf_counter() - began)}

    async def load(
        self, policy: str, lengths: Mapping[int, int], rate: float, seconds: float, seed: int
    ) -> dict[str, Any]:
        """Open loop: latencies count from when a request was due, not from when it was sent."""
        trace = draw_trace(lengths, max(10, int(rate * seconds)), rate, seed=seed)
        ours = policy == "by-cost"
        scheduler = self.scheduler(policy, lengths, self.slo if ours else None)
        loop, latencies, refused = asyncio.get_running_loop(), list[float](), 0
        for index, item in enumerate(trace):
            self.request(item.length, index)
        answers: list[tuple[int, int, Any]] = []
        busy, own = time.process_time(), time.thread_time()
        started = loop.time()
        short = {"refused": 0, "expired": 0}
        lengths_refused: list[int] = []

        async def one(index: int, item: Arrival) -> None:
            nonlocal refused
            try:
                answer = await scheduler.submit(
                    self.request(item.length, index),
                    deadline=started + item.at + self.slo if ours else None,
                )
                latencies.append(loop.time() - started - item.at)
                answers.append((item.length, index, answer))
            except ServerError as error:
                refused += 1
                short["refused" if error.status == 429 else "expired"] += 1
                lengths_refused.append(item.length)

        tasks = []
        for index, item in enumerate(trace):
            wait = started + item.at - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.ensure_future(one(index, item)))
        offered_s = loop.time() - started
        if not ours:  # what waits now is far too late: it would only take time
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        took = loop.time() - started
        busy, own = time.process_time() - busy, time.thread_time() - own
        await scheduler.close()
        latencies.sort()
        inside = sum(x <= self.slo for x in latencies)

        def pick(share: float) -> float | None:
            if not latencies:
                return None
            return latencies[min(len(latencies) - 1, int(share * len(latencies)))] * 1e3

        return {
            "offered_per_s": len(trace) / offered_s,
            "offered": len(trace),
            "answered": len(latencies),
            **short,
            "goodput_per_s": inside / took,
            "error": max((self.error(*item) for item in answers), default=None),
            "p50_ms": pick(0.5),
            "p99_ms": pick(0.99),
            "mean_length_refused": statistics.mean(lengths_refused) if lengths_refused else None,
            "mean_length": statistics.mean(item.length for item in trace),
            # CPUs' worth all the time; the loop's are the clients' and the scheduler's together.
            "cpus": busy / took,
            "loop_cpus": own / took,
            "batches": dict(sorted(scheduler.batches.items())),
        }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--costs", required=True, help="of bench --serving")
    parser.add_argument("--lengths", required=True, help="JSON histogram of the mixed traffic")
    parser.add_argument(
        "--model", help="the folder that the bundle was built from, for ONNX Runtime"
    )
    parser.add_argument("--onnx", type=Path, help="its ONNX file, if there is one already")
    parser.add_argument("--traffic", nargs="+", choices=TRAFFICS, default=TRAFFICS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--saturated", nargs="+", help=f"of all requests at once, {OFFLINE} too; default: all rules"
    )
    parser.add_argument("--mixed", type=int, default=400)
    parser.add_argument("--queries", type=int, default=1600)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--slo", type=float, default=0.1)
    parser.add_argument("--rules", nargs="+", help="of the loads; default: ours, streams, TEI's")
    parser.add_argument("--factors", nargs="+", type=float, default=[0.5, 1.0, 1.5])
    parser.add_argument("--load-rounds", type=int, default=1)
    parser.add_argument(
        "--output", type=Path, required=True, help="JSON; a page and drawings beside it"
    )
    options = parser.parse_args()
    mixed = read_lengths(options.lengths)
    every = {"mixed": (mixed, options.mixed), "queries": (QUERIES, options.queries)}
    traffics = {name: every[name] for name in options.traffic}
    result: dict[str, Any] = {
        "load_before": os.getloadavg(),
        "slo": options.slo,
        "saturated": [],
        "load": [],
        "predicted": {},
    }
    onnx = options.onnx
    if options.model and not onnx:
        from benchmarks.baselines.onnx_file import make_onnx
        from benchmarks.baselines.workshop import Workshop
        from edgecompile.bench.bench import default_cache

        cpus = len(os.sched_getaffinity(0))
        shop = Workshop.of_bundle(Path(options.bundle), options.model, cpus, default_cache())
        onnx = make_onnx(shop)
    began = time.perf_counter()
    with open_bundle(options.bundle, concurrency=len(os.sched_getaffinity(0))) as model:
        result["host"], result["cpus"] = model.info["host"], model.info["threads"]
        bench = Bench(model, json.loads(Path(options.costs).read_text()), options.slo, onnx)
        for name, (lengths, count) in traffics.items():
            trace = draw_trace(lengths, count, seed=1)
            result["predicted"][name] = {
                OFFLINE: count / offline_seconds(trace, bench.table, bench.cpus)
            } | {
                policy: simulate(
                    trace,
                    make_queue(policy, bench.table, bench.cpus, lengths, limit=count),
                    bench.cpus,
                    policy=policy,
                ).rate
                for policy in POLICIES
            }
            print(
                name,
                "predicted",
                {k: round(v, 1) for k, v in result["predicted"][name].items()},
                flush=True,
            )
            for policy in ("by-cost", *bench.rules[-1:]):
                if options.saturated and policy not in options.saturated:
                    continue
                asyncio.run(bench.saturate(policy, lengths, count // 4, 0))
        for round_ in range(options.rounds):
            for name, (lengths, count) in traffics.items():
                order = options.saturated or [*bench.rules, OFFLINE]
                order = random.Random(round_).sample(order, len(order))
                for policy in order:
                    few = count // 2 if policy in ("tei", AROUND) and name == "mixed" else count
                    outcome = (
                        bench.offline(lengths, few, 1)
                        if policy == OFFLINE
                        else asyncio.run(bench.saturate(policy, lengths, few, 1))
                    )
                    result["saturated"].append(
                        {"traffic": name, "policy": policy, "round": round_, **outcome}
                    )
                    print(
                        round_,
                        name,
                        policy,
                        round(outcome["texts_per_s"], 1),
                        f"{time.perf_counter() - began:.0f} s",
                        flush=True,
                    )
            options.output.write_text(json.dumps(result, indent=1) + "\n")
        measure_loads(bench, traffics, options, result)
    result["load_after"], result["seconds"] = os.getloadavg(), time.perf_counter() - began
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(render(result))
    write_drawings(result, options.output)


def measure_loads(
    bench: Bench, traffics: Mapping[str, Any], options: argparse.Namespace, result: dict[str, Any]
) -> None:
    """Each rule at each load, in rounds with an order of their own."""
    capacities = {
        name: statistics.median(
            row["texts_per_s"]
            for row in result["saturated"]
            if (row["traffic"], row["policy"]) == (name, "by-cost")
        )
        for name in traffics
    }
    rules = options.rules or ["by-cost", "streams", "tei", *bench.rules[len(POLICIES) :]]
    for round_ in range(options.load_rounds):
        order = [
            (name, rule, load) for name in traffics for rule in rules for load in options.factors
        ]
        random.Random(round_).shuffle(order)
        for name, rule, load in order:
            # Of the others' backlog longer loads only make more.
            seconds = options.seconds * (0.5 if rule != "by-cost" else 1.0)
            rate = load * capacities[name]
            outcome = asyncio.run(bench.load(rule, traffics[name][0], rate, seconds, 7 + round_))
            row = {"traffic": name, "policy": rule, "factor": load, "round": round_}
            row |= {"capacity": capacities[name], **outcome}
            result["load"].append(row)
            share = outcome["goodput_per_s"] / capacities[name]
            print(
                name, rule, load, "goodput/capacity", round(share, 3), "p99", outcome["p99_ms"],
                "refused", outcome["refused"], "expired", outcome["expired"], flush=True,
            )  # fmt: skip
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
