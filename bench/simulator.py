"""What simulating costs: one configuration, growth with requests, seats and load, 200 candidates, a day of a large service.

    python bench/simulator.py [--json] [--candidates] [--day]

CPU seconds of this process after start-up (`time.process_time`), the best of three, so that other work on the machine
hardly matters; the 200 candidates are wall and CPU seconds of two processes, start-up and summaries included.
"""

import argparse
import json
import platform
import re
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from servefit.engine.config import EngineConfig
from servefit.engine.flow import PIECE, simulate_flow
from servefit.engine.jump import kernel_compiled, simulate_jumping
from servefit.engine.simulate import simulate_stepping
from servefit.facts.devices import find_device
from servefit.facts.models import find_model
from servefit.physics.constants import constants_for
from servefit.physics.memory import kv_pool
from servefit.physics.roofline import roofline_step
from servefit.workload.arrivals import schedule
from servefit.workload.columns import pieces
from servefit.workload.workload import Lengths, Workload

DEVICE, MODEL = find_device("a100-80gb"), find_model("llama-3.1-8b")
STEP = roofline_step(MODEL, DEVICE, "bf16", constants=constants_for(DEVICE))
BLOCKS = kv_pool(MODEL, DEVICE, "bf16", 2048).blocks


def main():
    """Print the figures as a table, or as one JSON object."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--json", action="store_true")
    args.add_argument("--candidates", action="store_true", help="also 200 candidates on two processes")
    args.add_argument("--day", action="store_true", help="also days of 100,000, 1 and 10 million requests")
    given = args.parse_args()
    out = {"python": platform.python_version(), "machine": platform.machine(), "rows": rows()}
    if given.candidates:
        out["candidates"] = candidates()
    if given.day:
        out["day"] = [
            alone(router, n, n // 50_000)
            for router in ("round-robin", "least-outstanding")
            for n in (100_000, 1_000_000, 10_000_000)
        ]
    out["peak_memory_mb"] = peak_mb()
    if given.json:
        print(json.dumps(out))
        return
    print(f"{'':44} {'CPU s':>8} {'requests/s':>12}")
    for row in out["rows"]:
        print(f"{row['what']:44} {row['cpu_s']:8.3f} {row['req_per_s']:12,.0f}")
    if "candidates" in out:
        print(f"candidates: {out['candidates']}")
    for one in out.get("day", ()):
        print(
            f"{one['requests']:12,} requests in a day, {one['replicas']:3} replicas, {one['router']:18} "
            f"{one['cpu_s']:6.1f} CPU s  peak {one['peak_mb']:6,.0f} MB, of it {one['peak_mb_before']:,.0f} MB before"
        )
    print(f"peak memory {out['peak_memory_mb']:,.0f} MB")


def asked(n, rate=5.0):
    """Poisson arrivals, 512 tokens in, 256 out."""
    return schedule(Workload(n=n, rate_req_per_s=rate, isl=Lengths(mean=512), osl=Lengths(mean=256)))


def rows():
    """The table: what, CPU seconds, requests per second."""
    plain = {"compiled": False}
    base = asked(10_000)
    out = [row("10,000 requests, 5/s, uncompiled", base, EngineConfig(seats=256, kv_blocks=BLOCKS), **plain)]
    start = time.process_time()
    if kernel_compiled() is None:
        return out
    simulate_jumping(base[:10], EngineConfig(seats=256, kv_blocks=BLOCKS), STEP, compiled=True)
    out.append({"what": "start-up of the compiled engine", "cpu_s": time.process_time() - start, "req_per_s": 0.0})
    fast = {"compiled": True}
    out.append(row("10,000 requests, 5/s, compiled", base, EngineConfig(seats=256, kv_blocks=BLOCKS), **fast))
    wide = EngineConfig(seats=256, kv_blocks=BLOCKS)
    out += [row(f"{n:,} requests, 5/s", asked(n), wide, **fast) for n in (1_000, 30_000, 100_000)]
    for seats in (8, 32, 128):
        narrow = EngineConfig(seats=seats, kv_blocks=BLOCKS)
        out += [row(f"10,000 requests, 5/s, {seats} seats", base, narrow, **fast)]
    for rate in (1.0, 20.0, 50.0):
        out += [row(f"10,000 requests, {rate:g}/s", asked(10_000, rate), wide, **fast)]
    for policy in ("none", "static", "dynamic", "continuous"):
        config = EngineConfig(policy=policy, seats=64, kv_blocks=BLOCKS)
        out.append(row(f"10,000 requests, 5/s, {policy}", base, config, **fast))
    start = time.process_time()
    simulate_stepping(base[:1000], EngineConfig(seats=256, kv_blocks=BLOCKS), STEP)
    took = time.process_time() - start
    out.append({"what": "1,000 requests, 5/s, one step at a time", "cpu_s": took, "req_per_s": 1000 / took})
    return out


def row(what, requests, config, *, compiled):
    """Best of three."""
    best = min(once(requests, config, compiled=compiled) for _ in range(3))
    return {"what": what, "cpu_s": best, "req_per_s": len(requests) / best}


def once(requests, config, *, compiled):
    """CPU seconds of one simulation."""
    start = time.process_time()
    simulate_jumping(requests, config, STEP, compiled=compiled)
    return time.process_time() - start


def candidates():
    """200 candidates x 10,000 requests, with every percentile, on two processes from a cold start."""
    work = [
        (policy, seats, rate)
        for policy in ("continuous", "chunked")
        for seats in range(4, 204, 4)
        for rate in (5.0, 8.0)
    ]
    start = time.perf_counter()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        cpu = sum(pool.map(candidate, work, chunksize=10))
    return {"n": len(work), "wall_s": time.perf_counter() - start, "cpu_s": cpu}


def candidate(what):
    """CPU seconds of one candidate and its percentiles."""
    policy, seats, rate = what
    requests = REQUESTS.setdefault(rate, None) or asked(10_000, rate)
    REQUESTS[rate] = requests
    start = time.process_time()
    config = EngineConfig(policy=policy, seats=seats, kv_blocks=BLOCKS)
    simulate_jumping(requests, config, STEP).spreads()
    return time.process_time() - start


REQUESTS = {}


def day(router, n=10_000_000, replicas=200):
    """So many requests in 24 h, in this process, from drawing them to every percentile: piece by piece."""
    workload = Workload(n=n, rate_req_per_s=n / 86_400, isl=Lengths(mean=512), osl=Lengths(mean=256))
    before_mb, cpu, wall = peak_mb(), time.process_time(), time.perf_counter()
    config = EngineConfig(seats=256, kv_blocks=BLOCKS)
    out = simulate_flow(pieces(workload, PIECE), config, STEP, replicas=replicas, router=router)
    return {
        "router": router, "requests": n, "replicas": replicas, "cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall,
        "peak_mb": peak_mb(), "peak_mb_before": before_mb, "finished": out.finished, "steps": out.steps,
        "ttft_p99_s": out.ttft_s.p99, "itl_p99_s": out.itl_s.p99,
    }  # fmt: skip


def alone(router, n, replicas):
    """A day in a process of its own, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(day, router, n, replicas).result()


def peak_mb():
    """The most memory that this process has had: its own, where Linux tells it apart from what its parent had."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
