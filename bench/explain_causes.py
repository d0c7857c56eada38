"""Does explain name the cause that is there, and no other? Causes provoked on the simulated engine, many seeds each.

    python bench/explain_causes.py [--seeds 20] [--json]

Each row is a cause that was provoked (or a calm run), each with other lengths, rates and noise a seed: how often its rule
fired, how often another of the causes in the table fired too.
"""

# ruff: noqa: ARG001, I001 - every case takes the same arguments; paths first

import argparse
import json
import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / part) for part in ("src", "tests")]

from explain.runs import by_hand, of_requests, simulate, stream  # noqa: E402

from servefit.explain.rules import diagnose_run  # noqa: E402
from servefit.records import Run  # noqa: E402
from servefit.workload.requests import Request  # noqa: E402


def calm(rng: random.Random, seed: int) -> Run:
    """One user, short prompts."""
    return simulate(n=20, isl=rng.randint(16, 200), osl=rng.randint(24, 96), users=1, seed=seed)


def calm_open(rng: random.Random, seed: int) -> Run:
    """Poisson arrivals at 10 to 25% of capacity, enough seats."""
    return simulate(
        n=40, isl=rng.randint(16, 96), osl=rng.randint(24, 64), rate=rng.uniform(0.3, 0.7), seats=16, seed=seed
    )


def long_prompt(rng: random.Random, seed: int) -> Run:
    """One user, 800 to 3,000 prompt tokens."""
    return simulate(n=10, isl=rng.randint(800, 3000), osl=rng.randint(16, 64), users=1, seed=seed)


def seats_full(rng: random.Random, seed: int) -> Run:
    """More users than seats."""
    seats = rng.randint(1, 6)
    return simulate(
        n=40,
        isl=rng.randint(16, 128),
        osl=rng.randint(32, 96),
        users=seats * 2 + rng.randint(1, 6),
        seats=seats,
        seed=seed,
    )


def prefill_stall(rng: random.Random, seed: int) -> Run:
    """Long prompts arrive while answers run."""
    gap = rng.uniform(0.7, 1.3)
    isl = rng.randint(500, 1500)
    return of_requests(
        [Request(id=i, due_s=i * gap + rng.random() * 0.2, isl=isl, osl=rng.randint(80, 160)) for i in range(24)],
        seats=16,
    )


def chunked(rng: random.Random, seed: int) -> Run:
    """The same with slices of 32 to 64 tokens: no stall."""
    gap = rng.uniform(1.0, 1.5)
    isl = rng.randint(300, 700)
    requests = [Request(id=i, due_s=i * gap + rng.random() * 0.2, isl=isl, osl=rng.randint(60, 90)) for i in range(24)]
    return of_requests(requests, policy="chunked", budget_tok=rng.choice([48, 64]), seats=16)


def prompts_ahead(rng: random.Random, seed: int) -> Run:
    """A seat for everybody, prompts in slices, and more users than a step's tokens serve at once."""
    return simulate(
        n=40,
        isl=rng.randint(200, 700),
        osl=rng.randint(32, 64),
        users=rng.choice([6, 8, 10]),
        policy="chunked",
        budget_tok=rng.choice([32, 48, 64, 128]),
        seats=16,
        seed=seed,
    )


def preemption(rng: random.Random, seed: int) -> Run:
    """A KV pool for about half of what the seats need."""
    return simulate(n=24, isl=64, osl=rng.randint(192, 320), users=8, kv_blocks=rng.randint(55, 80), seed=seed)


def host_trouble(rng: random.Random, seed: int) -> Run:
    """Equal requests, each alone, at paces that differ by half and more."""
    return by_hand(
        [
            stream(i, i * 9.0, 0.1 + rng.random() * 0.05, [rng.choice([0.010, 0.013, 0.017, 0.024])] * 48)
            for i in range(12)
        ]
    )


def slowing_down(rng: random.Random, seed: int) -> Run:
    """A pace that falls by 25 to 60% over two minutes."""
    more = rng.uniform(0.25, 0.6) * 0.010 / 20
    return by_hand(
        [stream(i, i * 6.0, 0.1, [0.010 + more * i + rng.random() * 2e-4 for _ in range(60)]) for i in range(21)]
    )


CASES = {
    "calm": (calm, None),
    "calm, open loop": (calm_open, None),
    "chunked prefill": (chunked, None),
    "long prompt": (long_prompt, "long_prompt"),
    "seats full": (seats_full, "seats_full"),
    "others' prompts": (prompts_ahead, "prompts_ahead"),
    "prefill stall": (prefill_stall, "prefill_stall"),
    "preemption": (preemption, "preemption"),
    "disturbed machine": (host_trouble, "host_trouble"),
    "heat or power": (slowing_down, "slowing_down"),
}
MAY_COME_TOGETHER = {
    "prompts_ahead": {"long_prompt"},
    "prefill_stall": {"long_prompt", "queueing", "prompts_ahead", "seats_full"},
    "preemption": {"queueing", "prompts_ahead", "seats_full", "prefill_stall"},
    "slowing_down": {"host_trouble"},
    "seats_full": {"queueing"},
    "calm, open loop": {"queueing"},
    "chunked prefill": {"queueing", "prompts_ahead", "long_prompt"},
}
"""Causes that a provoked one brings with it: not counted against the rules."""


def main() -> None:
    """Run every case with every seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    table = []
    for name, (make, expected) in CASES.items():
        named = first = others = 0
        wrong: dict[str, int] = {}
        for seed in range(asked.seeds):
            found = [c.code for c in diagnose_run(make(random.Random(seed), seed)).causes]
            may = MAY_COME_TOGETHER.get(expected or name, set())
            named += expected in found if expected else not set(found) - may
            first += bool(found) and found[0] == expected
            extra = set(found) - {expected} - may
            others += bool(extra)
            for code in extra:
                wrong[code] = wrong.get(code, 0) + 1
        table.append(
            {
                "provoked": name,
                "runs": asked.seeds,
                "named": named,
                "first": first if expected else None,
                "others": others,
                "which": wrong,
            }
        )
    if asked.json:
        print(json.dumps({"figure": "explain", "rows": table}))
        return
    print(f"{'provoked':<20} {'runs':>5} {'named':>6} {'first':>6} {'others too':>11}")
    for row in table:
        which = ", ".join(f"{code} {n}" for code, n in sorted(row["which"].items()))
        print(
            f"{row['provoked']:<20} {row['runs']:>5} {row['named']:>6} {row['first'] if row['first'] is not None else '-':>6} {row['others']:>11}  {which}"
        )


if __name__ == "__main__":
    main()
