"""Predict first, measure after: `python bench/predict.py [--engine embedded|llamacpp] [--repeats 3] [--loads 12] [--json]`.

Each engine is calibrated once, from outside. Then loads that the calibration has not seen are predicted by simulation,
and only after that measured, as often as --repeats says; the median of the repeats is what the prediction is held
against, and the spread between them is printed beside it. Nothing is fitted to these loads.

    itl, tpot p50, output tok/s    within 7%
    tpot p95, e2e p50 and p95      within 10%
    ttft p50 and p95               within 15% or the spread between repeats, below saturation
    order of the policies          by TTFT p95 and by worst ITL, as measured
    users within the targets       one user
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from servefit.calibrate.calibration import Calibration, load_calibration, save_calibration
from servefit.calibrate.learn import learn
from servefit.calibrate.probes import FULL, QUICK, probe_server
from servefit.calibrate.recognise import engine_config
from servefit.calibrate.words import words
from servefit.cli.show import jsonable, table
from servefit.engine.simulate import simulate_run
from servefit.measure import engines
from servefit.measure.probe import Endpoint, find_endpoint
from servefit.measure.run import Options, Prepared, measure, prepare
from servefit.objectives import Summary, Targets, summarize
from servefit.records import Run, load_run
from servefit.stats import percentile
from servefit.workload.arrivals import schedule
from servefit.workload.workload import Lengths, Workload

LIMITS = {
    "itl_p50": 0.07, "tpot_p50": 0.07, "tok_per_s": 0.07, "tpot_p95": 0.10, "e2e_p50": 0.10, "e2e_p95": 0.10,
    "ttft_p50": 0.15, "ttft_p95": 0.15,
}  # fmt: skip
SATURATED = 0.95
"""Above this share of busy time in the prediction, TTFT is a queue that grows with every percent of error: not held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load that the calibration has not seen."""

    name: str
    workload: Workload
    policy: str = "continuous"
    seats: int = 16
    budget_tok: int | None = None


def lengths(mean: int, low: int | None = None, high: int | None = None) -> Lengths:
    """Always `mean`, or evenly between `low` and `high`."""
    if low is None:
        return Lengths(mean=mean)
    return Lengths(
        kind="uniform", mean=(low + (high or low)) // 2, sd=((high or low) - low) / 12**0.5, min=low, max=high
    )


def closed(users: int, isl: Lengths, osl: Lengths, n: int) -> Workload:
    """Each of `users` asks again when answered."""
    return Workload(n=n, concurrency=users, isl=isl, osl=osl, seed=11)


def open_(rate: float, isl: Lengths, osl: Lengths, n: int, arrivals: str = "poisson") -> Workload:
    """So many a second, whatever becomes of them."""
    return Workload(n=n, rate_req_per_s=rate, arrivals=arrivals, isl=isl, osl=osl, seed=11)


def burst(isl: Lengths, osl: Lengths, n: int) -> Workload:
    """All at once."""
    return Workload(n=n, arrivals="burst", isl=isl, osl=osl, seed=11)


def loads_of(engine: str) -> list[Load]:
    """The held-out loads: closed and open, 1 to 16 seats, prompts 48 to 1,900, answers 16 to 256, under and over capacity."""
    f = 1.0 if engine == "embedded" else 0.25  # llama.cpp computes this model about four times slower in batches
    mixed = lengths(300, 60, 600)
    short = lengths(48, 24, 80)
    found = [
        Load(name="1 user, chat", workload=closed(1, lengths(200), lengths(64), 6)),
        Load(name="1 user, long prompt", workload=closed(1, lengths(1900), lengths(32), 4)),
        Load(name="2 users, long answer", workload=closed(2, lengths(80), lengths(256), 4)),
        Load(name="4 users, mixed", workload=closed(4, mixed, short, 16)),
        Load(name="8 users, mixed", workload=closed(8, mixed, short, 24)),
        Load(name="16 users, short", workload=closed(16, lengths(64), lengths(48), 32)),
        Load(name="12 users on 4 seats", workload=closed(12, lengths(128), lengths(32), 24), seats=4),
        Load(name="Poisson, light", workload=open_(1.0 * f, mixed, short, 14)),
        Load(name="Poisson, busy", workload=open_(3.0 * f, mixed, short, 28)),
        Load(name="Poisson, over capacity", workload=open_(9.0 * f, mixed, short, 36), seats=8),
        Load(name="burst of 12", workload=burst(lengths(150, 50, 250), lengths(32, 16, 48), 12)),
        Load(name="constant, prompts of 500", workload=open_(2.0 * f, lengths(500), lengths(24), 14, "constant")),
    ]
    if engine == "embedded":
        one = open_(5.0, lengths(240), lengths(48), 16, "constant")  # 8 of them stay below a step's 2,048 tokens
        found += [
            Load(name="policy none", workload=one, policy="none", seats=1),
            Load(name="policy static", workload=one, policy="static", seats=8),
            Load(name="policy dynamic", workload=one, policy="dynamic", seats=8),
            Load(name="policy continuous", workload=one, policy="continuous", seats=8),
            Load(name="policy chunked 128", workload=one, policy="chunked", seats=8, budget_tok=128),
            Load(name="chunked 256, 8 users", workload=closed(8, mixed, short, 24), policy="chunked", budget_tok=256),
        ]
    return found


def figures(summary: Summary) -> dict[str, float | None]:
    """The figures that are compared, in seconds and tokens per second."""
    return {
        "itl_p50": summary.itl_s.p50, "tpot_p50": summary.tpot_s.p50, "tpot_p95": summary.tpot_s.p95,
        "ttft_p50": summary.ttft_s.p50, "ttft_p95": summary.ttft_s.p95, "e2e_p50": summary.e2e_s.p50,
        "e2e_p95": summary.e2e_s.p95, "tok_per_s": summary.output_tok_per_s, "itl_max": summary.itl_s.max,
    }  # fmt: skip


def predict(load: Load, calibration: Calibration) -> tuple[Run, float]:
    """(the simulated run of the load, its busy share)."""
    batching = calibration.batching
    switches = {"policy": load.policy, "seats": load.seats}
    if load.policy == "chunked":
        switches["budget_tok"] = load.budget_tok
    if load.policy in ("static", "dynamic"):
        batching = replace(batching, timeout_s=2.0 if load.policy == "static" else 0.05)
    if calibration.engine == "llama.cpp":
        switches = {"seats": load.seats}
    config = engine_config(batching, **switches)
    run = simulate_run(load.workload, config, calibration.step)
    rows = run.rows
    end = max(r.done_s or 0.0 for r in rows)
    offered = max(r.due_s for r in rows)
    return run, offered / end if load.workload.concurrency is None and end else 1.0


class Bench:
    """The engines that run, one at a time, kept between loads that want the same switches."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.running: engines.RunningEngine | None = None
        self.switches: dict[str, object] = {}
        self.known: Prepared | None = None

    def endpoint(self, **switches: object) -> Endpoint:
        """The endpoint of an engine with these switches, started where it does not run yet."""
        if self.running is None or switches != self.switches:
            self.stop()
            self.running = engines.start(self.engine, **switches)
            self.switches = switches
            self.known = None
        return find_endpoint(self.running.url)

    def measure(self, load: Load, name: str) -> Run:
        """One run of the load."""
        policy = "continuous" if self.engine == "llamacpp" else load.policy
        endpoint = self.endpoint(policy=policy, seats=load.seats, budget_tok=load.budget_tok)
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        requests = schedule(load.workload)
        options = Options(out=out)
        if self.known is None:
            self.known = prepare(endpoint, load.workload, requests, options, 0)
            warm = Workload(n=4, concurrency=4, isl=Lengths(mean=200), osl=Lengths(mean=12), seed=99)
            measure(
                self.known.endpoint,
                warm,
                Options(out=self.folder / f"warm-{name}-{time.monotonic_ns()}"),
                known=self.known,
            )
        return measure(self.known.endpoint, load.workload, options, requests=requests, known=self.known)

    def stop(self) -> None:
        """Stop what runs."""
        if self.running is not None:
            self.running.stop()
            self.running = None


def calibrate(bench: Bench, *, quick: bool) -> Calibration:
    """The engine, calibrated once from outside, with 16 seats."""
    folder = bench.folder / "calibrate"
    shutil.rmtree(folder, ignore_errors=True)
    endpoint = bench.endpoint(policy="continuous", seats=16, budget_tok=None)
    began = time.monotonic()
    runs = dict(probe_server(endpoint, folder, size=QUICK if quick else FULL, clock=time.monotonic))
    print(f"probed in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return learn(list(runs.values()), names=list(runs))


def compare(
    predicted: dict[str, float | None], repeats: list[dict[str, float | None]]
) -> dict[str, dict[str, float | None]]:
    """Per figure: predicted, measured (median), error, and half the range between repeats as a share."""
    out: dict[str, dict[str, float | None]] = {}
    for name, value in predicted.items():
        seen = sorted(v for r in repeats if (v := r[name]) is not None)
        if value is None or not seen:
            continue
        middle = percentile(seen, 50)
        out[name] = {
            "predicted": value, "measured": middle, "error": value / middle - 1 if middle else None,
            "noise": (seen[-1] - seen[0]) / 2 / middle if middle else None,
        }  # fmt: skip
    return out


def users_within(bench: Bench, calibration: Calibration, targets: Targets, repeats: int) -> dict[str, int]:
    """The most users (closed loop, 200 + 32 tokens) for whom p95 of TTFT and TPOT hold: predicted, and measured."""

    def load(users: int) -> Load:
        return Load(name=f"users {users}", workload=closed(users, lengths(200), lengths(32), 4 * users))

    def holds(run: Run) -> bool:
        s = summarize(run)
        ttft, tpot = s.ttft_s.p95, s.tpot_s.p95
        return ttft is not None and tpot is not None and ttft <= (targets.ttft_s or 9) and tpot <= (targets.tpot_s or 9)

    predicted = max((u for u in range(1, 17) if holds(predict(load(u), calibration)[0])), default=0)
    measured, users, step = 0, max(predicted, 1), 0
    tried: dict[int, bool] = {}
    while 1 <= users <= 16 and users not in tried and step < 5:
        votes = sum(holds(bench.measure(load(users), f"users-{users}-{i}")) for i in range(repeats))
        tried[users] = 2 * votes > repeats
        users += 1 if tried[users] else -1
        step += 1
    measured = max((u for u, ok in tried.items() if ok), default=0)
    return {"predicted": predicted, "measured": measured}


def run_engine(engine: str, folder: Path, args: argparse.Namespace) -> dict[str, object]:
    """Calibrate, predict all, measure all."""
    bench = Bench(engine, folder)
    file = folder / "calibration.json"
    try:
        if args.keep and file.exists():
            calibration = load_calibration(file)
        else:
            calibration = calibrate(bench, quick=args.quick)
            save_calibration(calibration, file)
        for line in words(calibration):
            print(f"  {line}", file=sys.stderr)
        loads = [x for x in loads_of(engine) if not args.only or args.only in x.name][: args.loads]
        predictions = {load.name: predict(load, calibration) for load in loads}
        results = []
        for load in loads:
            runs = []
            for i in range(args.repeats):
                slug = "".join(c if c.isalnum() else "-" for c in load.name)
                path = folder / f"{slug}-{i}"
                runs.append(
                    load_run(path) if args.keep and (path / "run.json").exists() else bench.measure(load, path.name)
                )
            predicted_run, pressure = predictions[load.name]
            seen = compare(figures(summarize(predicted_run)), [figures(summarize(r)) for r in runs])
            results.append({"load": load.name, "saturated": pressure < SATURATED * 0.8, "figures": seen,
                            "ok": [summarize(r).ok for r in runs]})  # fmt: skip
            print(
                f"{load.name}: " + ", ".join(f"{k} {100 * (v['error'] or 0):+.0f}%" for k, v in seen.items()),
                file=sys.stderr,
            )
        users = (
            None
            if args.no_users
            else users_within(bench, calibration, Targets(ttft_s=args.ttft, tpot_s=args.tpot), args.repeats)
        )
    finally:
        bench.stop()
    return {"engine": engine, "loads": results, "users": users, "step": asdict(calibration.step),
            "batching": asdict(calibration.batching), "noise_frac": calibration.noise_frac}  # fmt: skip


def held(name: str, cell: dict[str, float | None], *, saturated: bool) -> bool | None:
    """Whether the figure lies within its limit; None where it is not held to one."""
    if name not in LIMITS or (saturated and name.startswith("ttft")):
        return None
    limit = max(LIMITS[name], cell["noise"] or 0.0) if name.startswith("ttft") else LIMITS[name]
    return abs(cell["error"] or 0.0) <= limit


def order(results: list[dict], figure: str, key: str) -> list[str]:
    """The policies, best first, by a figure."""
    rows = [r for r in results if r["load"].startswith("policy ") and figure in r["figures"]]
    return [r["load"].removeprefix("policy ") for r in sorted(rows, key=lambda r: r["figures"][figure][key])]


def show(result: dict) -> None:
    """The table: error of each figure, the noise between repeats in brackets, a mark where the limit is passed."""
    names = list(LIMITS)
    lines, passed, total = [], 0, 0
    for r in result["loads"]:
        line = [r["load"] + (" (over capacity)" if r["saturated"] else "")]
        for name in names:
            cell = r["figures"].get(name)
            if cell is None:
                line.append("-")
                continue
            verdict = held(name, cell, saturated=r["saturated"])
            passed += verdict is True
            total += verdict is not None
            mark = {True: "", False: " !", None: " ·"}[verdict]
            line.append(f"{100 * cell['error']:+.0f}% ({100 * cell['noise']:.0f}){mark}")
        lines.append(line)
    table(
        ["load", *names],
        lines,
        title=f"{result['engine']}: error (noise) in %, '!' past the limit, '·' not held",
        right=range(1, 9),
    )
    for name in names:
        errors = sorted(abs(r["figures"][name]["error"]) for r in result["loads"] if name in r["figures"])
        if errors:
            print(
                f"  {name:10} median {100 * errors[len(errors) // 2]:.1f}%, worst {100 * errors[-1]:.0f}% (limit {100 * LIMITS[name]:.0f}%)"
            )
    print(f"  within the limits: {passed} of {total}")
    if result["engine"] == "embedded":
        for figure, what in (("ttft_p95", "TTFT p95"), ("itl_max", "worst ITL")):
            print(
                f"  order by {what}: predicted {order(result['loads'], figure, 'predicted')}, measured {order(result['loads'], figure, 'measured')}"
            )
    if result["users"]:
        print(
            f"  users within the targets: predicted {result['users']['predicted']}, measured {result['users']['measured']}"
        )


def main() -> int:
    """Both engines, or the one named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("embedded", "llamacpp", "both"), default="both")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loads", type=int, default=99)
    parser.add_argument("--only", default="", help="loads whose name holds this")
    parser.add_argument("--quick", action="store_true", help="the quick calibration")
    parser.add_argument("--keep", action="store_true", help="use what lies in --out already")
    parser.add_argument("--no-users", action="store_true")
    parser.add_argument("--ttft", type=float, default=0.6, help="target for p95 TTFT, s")
    parser.add_argument("--tpot", type=float, default=0.045, help="target for p95 TPOT, s")
    parser.add_argument("--out", type=Path, help="folder for the runs (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = args.out or Path(tempfile.mkdtemp(prefix="servefit-predict-"))
    results = [
        run_engine(e, folder / e, args) for e in (("embedded", "llamacpp") if args.engine == "both" else (args.engine,))
    ]
    if args.json:
        print(json.dumps(jsonable({"load_1min": os.getloadavg()[0], "results": results})))
    else:
        for result in results:
            show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
