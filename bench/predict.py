"""Predict first, measure after: `python bench/predict.py --out FILE [--engine embedded|llamacpp] [--for 80] [--table]`.

Each engine is calibrated once, from outside. Then loads that the calibration has not seen are predicted by simulation,
all of them written to FILE, and only after that measured, as often as --repeats says; the median of the repeats is what
the prediction is held against, and the spread between them is printed beside it. Nothing is fitted to these loads.

FILE grows by one JSON object a line (calibrated, predicted, measured), so the bench can be run in slices: each call goes on
where the last one ended, and starts nothing new after --for seconds. --table prints what lies in FILE. --again predicts
anew, from the same calibration, with today's code; the table marks what was predicted after it was measured. On a
shared machine the same step takes longer some minutes later: what a token and a prompt of a lone request take just before and after a
load, over what they took beside the calibration, is the load's pace, of memory and of arithmetic. --at-pace predicts each run for a
machine of that pace; nothing else of the run goes into it.

    itl, tpot p50, output tok/s    within 7%
    tpot p95, e2e p50 and p95      within 10%
    ttft p50 and p95               within 15% or the spread between repeats, below saturation
    order of the policies          by TTFT p95 and by worst ITL, as measured
    users within the targets       one user; the targets lie halfway between what 6 and 7 users are predicted to get
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from predict_loads import MOST_USERS, WAIT_S, Load, Lone, Pace, closed, figures, lengths, loads_of, predict, users_load
from predict_table import QUIET, STEADY, counts, results, show, within

from servefit.calibrate.calibration import Calibration, load_calibration, save_calibration
from servefit.calibrate.learn import learn
from servefit.calibrate.probes import FULL, QUICK, probe_server
from servefit.calibrate.words import words
from servefit.cli.show import jsonable
from servefit.host.machine import chip_name
from servefit.measure.probe import Endpoint, find_endpoint
from servefit.measure.run import Options, Prepared, measure, prepare
from servefit.objectives import summarize
from servefit.records import Run
from servefit.servers import engines
from servefit.stats import percentile
from servefit.workload.arrivals import schedule
from servefit.workload.workload import Lengths, Workload


class Bench:
    """The engine that runs, kept between loads that want the same switches."""

    def __init__(self, engine: str, folder: Path, *, first: bool) -> None:
        self.engine, self.folder, self.first = engine, folder, first
        self.running: engines.RunningEngine | None = None
        self.switches: dict[str, object] = {}
        self.known: Prepared | None = None

    def endpoint(self, switches: dict[str, object]) -> Endpoint:
        """The endpoint of an engine with these switches, started where it does not run yet."""
        if self.running is None or switches != self.switches:
            self.stop()
            self.running = engines.start(self.engine, **switches)
            if self.first:
                first_in_line(self.running.process.pid)
            self.switches = switches
            self.known = None
        return find_endpoint(self.running.url)

    def lone_s(self, switches: dict[str, object]) -> Lone:
        """What one lone request takes just now. A fresh engine is warmed up."""
        endpoint = self.endpoint(switches)
        if self.known is None:
            options = Options(out=self.folder / "aside")
            self.known = prepare(endpoint, LONE, schedule(LONE), options, 0)
            self.aside(Workload(n=4, concurrency=4, isl=Lengths(mean=200), osl=Lengths(mean=12), seed=99))
        seen = summarize(self.aside(LONE))
        return Lone(seen.itl_s.p50 or 0.0, (seen.ttft_s.p50 or 0.0) - WAIT_S.get(str(switches["policy"]), 0.0))

    def measure(self, load: Load, name: str) -> tuple[Run, float]:
        """(one run of the load, the share of time that our threads waited for a processor), after `lone_s`."""
        assert self.known is not None, "the pace is looked at first"
        before = processor_s(self.sessions())
        options = Options(out=self.folder / f"{name}-{time.monotonic_ns()}")
        run = measure(self.known.endpoint, load.workload, options, requests=schedule(load.workload), known=self.known)
        return run, waited_frac(before, processor_s(self.sessions()))

    def aside(self, workload: Workload) -> Run:
        """A run that is no result: to warm up, or to see how fast the machine is just now."""
        out = Options(out=self.folder / f"aside-{time.monotonic_ns()}")
        return measure(self.known.endpoint, workload, out, known=self.known)

    def sessions(self) -> set[int]:
        """Ours and the engine's."""
        return {os.getsid(0)} | ({self.running.process.pid} if self.running else set())

    def stop(self) -> None:
        """Stop what runs."""
        if self.running is not None:
            self.running.stop()
            self.running = None


def first_in_line(pid: int) -> None:
    """Let the session of the process come before the other sessions on the machine (Linux with autogroups, as root).

    What other programs take then comes in slices of a few ms. Real-time priority (chrt) is no way: the kernel gives the
    others 50 ms of every second at once, and an engine's spinning threads keep its own server and the client waiting.
    """
    Path(f"/proc/{pid}/autogroup").write_text("-20")


LONE = closed(1, lengths(200), lengths(32), 1)
"""How fast the machine is: one request."""


def processor_s(sessions: set[int]) -> tuple[float, float]:
    """(seconds that the sessions' threads have run, seconds that they were ready to and had to wait), from Linux's own account."""
    ran = waited = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) in sessions:
                for thread in (process / "task").iterdir():
                    a, b, _ = (thread / "schedstat").read_text().split()
                    ran, waited = ran + int(a), waited + int(b)
        except (OSError, ValueError):
            continue  # it has just ended, or there is no such account here
    return ran / 1e9, waited / 1e9


def waited_frac(before: tuple[float, float], after: tuple[float, float]) -> float:
    """The share of waiting in what was run and waited between two accounts; 0 where nothing ran."""
    ran, waited = max(after[0] - before[0], 0.0), max(after[1] - before[1], 0.0)
    return waited / (ran + waited) if ran + waited else 0.0


class Results:
    """The file of results: what lies in it, and a line more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.lines: list[dict] = [json.loads(line) for line in text.splitlines()]
        self.commit = commit()

    def add(self, kind: str, engine: str, **more: object) -> None:
        """One line more, with when and by which code."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        line = jsonable({"kind": kind, "engine": engine, "at": at, "commit": self.commit, **more})
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(line) + "\n")

    def has(self, kind: str, engine: str, **more: object) -> bool:
        """Whether such a line is there."""
        return any(
            x["kind"] == kind and x["engine"] == engine and all(x.get(k) == v for k, v in more.items())
            for x in self.lines
        )

    def runs(self, engine: str, load: str) -> int:
        """How often the load was tried: one that does not count lets the others go first."""
        return sum(x["kind"] == "measured" and x["engine"] == engine and x["load"] == load for x in self.lines)

    def quiet_runs(self, engine: str, load: str) -> int:
        """How many runs of the load count."""
        return sum(
            x["kind"] == "measured" and x["engine"] == engine and x["load"] == load and counts(x) for x in self.lines
        )


def commit() -> str:
    """Which code this is: the short hash, "+" where it has changes; "unknown" outside of a repository."""
    try:
        here = Path(__file__).parent
        said = [
            subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for args in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said[0] + ("+" if said[1] else "")


CALIBRATED = {"policy": "continuous", "seats": 16, "budget_tok": None}
"""The switches of the engine that is calibrated: all other policies and seats are predicted from this one."""


def calibrate(bench: Bench, *, quick: bool, rounds: int) -> tuple[Calibration, Lone] | None:
    """(the engine, calibrated once from outside; a lone request as it was then); None where the machine was not quiet."""
    folder = bench.folder / "calibrate"
    shutil.rmtree(folder, ignore_errors=True)
    endpoint = bench.endpoint(CALIBRATED)
    ahead = [bench.lone_s(CALIBRATED) for _ in range(5)]
    before = processor_s(bench.sessions())
    runs, beside = {}, []
    for name, run in probe_server(
        endpoint, folder, size=QUICK if quick else FULL, rounds=rounds, budget_s=1e9, clock=time.monotonic
    ):
        runs[name] = run
        beside.append(bench.lone_s(CALIBRATED))
    waited = waited_frac(before, processor_s(bench.sessions()))
    behind = [bench.lone_s(CALIBRATED) for _ in range(5)]
    pace = typical(behind).itl_s / typical(ahead).itl_s
    print(f"calibrated: waited {100 * waited:.0f}%, pace after over before {pace:.2f}", file=sys.stderr)
    if waited > QUIET or abs(pace - 1) > 2 * STEADY:
        return None
    return learn(list(runs.values()), names=list(runs)), typical(beside)


def typical(seen: list[Lone]) -> Lone:
    """The medians of lone requests."""
    return Lone(percentile([x.itl_s for x in seen], 50) or 0.0, percentile([x.ttft_s for x in seen], 50) or 0.0)


def predict_all(found: Results, engine: str, calibration: Calibration) -> None:
    """Every load, and every number of users, into the file."""
    for load in [*loads_of(engine, calibration), *map(users_load, range(1, MOST_USERS + 1))]:
        expected, saturated = predict(load, calibration)
        found.add("predicted", engine, load=load.name, saturated=saturated, figures=expected)


def predict_named(calibration: Calibration, engine: str, name: str, pace: Pace) -> dict[str, float | None]:
    """The figures of the load called so, on a machine of that pace.

    Where the engine's switches make a lone prompt another number of steps than when it was calibrated, its TTFT says so, not the machine's.
    """
    load = {x.name: x for x in [*loads_of(engine, calibration), *map(users_load, range(1, MOST_USERS + 1))]}[name]
    usual, here = (
        lone_predicted_s(calibration, x) for x in (Load(name="lone", workload=LONE), replace(load, workload=LONE))
    )
    return predict(load, calibration, pace._replace(compute=pace.compute * usual / here))[0]


def lone_predicted_s(calibration: Calibration, load: Load) -> float:
    """What arithmetic the prompt of a lone request takes, predicted for the engine with the load's switches."""
    told = predict(load, calibration)[0]
    return (told["ttft_p50"] or 0.0) - (told["itl_p50"] or 0.0) - WAIT_S.get(load.policy, 0.0)


def targets_of(calibration: Calibration) -> dict[str, float]:
    """Halfway between what 6 and 7 users are predicted to get (TPOT), and a TTFT as between 9 and 10: neither 0 nor all."""

    def at(users: int, figure: str) -> float:
        return predict(users_load(users), calibration)[0][figure] or 0.0

    return {
        name: round((at(users, name) + at(users + 1, name)) / 2, 4)
        for name, users in (("tpot_p95", 6), ("ttft_p95", 9))
    }


def todo(found: Results, engine: str, calibration: Calibration, args: argparse.Namespace) -> list[tuple[Load, int]]:
    """What is not measured yet: what was tried least comes first, engines with the same switches side by side."""
    wanted = [n.strip() for n in args.loads.split(",") if n.strip()]
    loads = [x for x in loads_of(engine, calibration) if not wanted or any(w in x.name for w in wanted)]
    loads.sort(key=lambda x: (found.runs(engine, x.name), str(x.switches)))
    return [
        (load, repeat)
        for repeat in range(args.repeats)
        for load in loads
        if found.quiet_runs(engine, load.name) <= repeat
    ]


def next_users(found: Results, engine: str, repeats: int) -> tuple[Load, int] | None:
    """The number of users to try next: from the predicted one up while it holds, down while it does not; None: done."""
    targets = next(x["targets"] for x in found.lines if x["kind"] == "calibrated" and x["engine"] == engine)
    asked = {u: within(found.lines, engine, u, targets) for u in range(1, MOST_USERS + 1)}
    users = max((u for u, (predicted, _) in asked.items() if predicted), default=1)
    before: bool | None = None
    while 1 <= users <= MOST_USERS:
        if (seen := found.quiet_runs(engine, f"users {users}")) < repeats:
            return users_load(users), seen
        ok = asked[users][1]
        if before is not None and ok != before:
            return None
        before = ok
        users += 1 if ok else -1
    return None


def slice_of(engine: str, found: Results, folder: Path, args: argparse.Namespace) -> None:
    """Go on with this engine until all is done or the time is over."""
    began = time.monotonic()
    bench = Bench(engine, folder, first=args.first)
    file = folder / "calibration.json"
    try:
        while not found.has("calibrated", engine):
            if time.monotonic() - began > args.for_s:
                return
            folder.mkdir(parents=True, exist_ok=True)
            if (learned := calibrate(bench, quick=args.quick, rounds=args.rounds)) is None:
                continue
            calibration, lone = learned
            save_calibration(calibration, file)
            for line in words(calibration):
                print(f"  {line}", file=sys.stderr)
            found.add("calibrated", engine, targets=targets_of(calibration), step=asdict(calibration.step), machine=chip_name(),
                      batching=asdict(calibration.batching), noise_frac=calibration.noise_frac, lone=lone)  # fmt: skip
        calibration = load_calibration(file)
        if args.again or not found.has("predicted", engine):
            predict_all(found, engine, calibration)
        lone = Lone(*next(x["lone"] for x in found.lines if x["kind"] == "calibrated" and x["engine"] == engine))
        while args.repeats and time.monotonic() - began < args.for_s:
            left = todo(found, engine, calibration, args)
            item = left[0] if left else None if args.loads else next_users(found, engine, args.repeats)
            if item is None:
                print(f"{engine}: all is measured", file=sys.stderr)
                break
            load, repeat = item
            slug = "".join(c if c.isalnum() else "-" for c in load.name)
            ahead = bench.lone_s(load.switches)
            run, waited = bench.measure(load, f"{slug}-{repeat}")
            behind = bench.lone_s(load.switches)
            pace = Lone((ahead.itl_s + behind.itl_s) / 2, (ahead.ttft_s + behind.ttft_s) / 2).over(lone)
            summary = summarize(run)
            found.add("measured", engine, load=load.name, ok=summary.ok, n=summary.n, waited_frac=waited, pace=pace,
                      figures=figures(summary))  # fmt: skip
            said = f"{engine}: {load.name}, {summary.ok} of {summary.n}, waited {100 * waited:.0f}%, pace {pace.memory:.2f} and {pace.compute:.2f}, {len(left)} left"
            print(said, file=sys.stderr)
    finally:
        bench.stop()


def main() -> int:
    """A slice of both engines, or of the one named; or the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("embedded", "llamacpp", "both"), default="both")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--loads", default="", help="loads whose names hold one of these, with commas between; default: all"
    )
    parser.add_argument("--for", dest="for_s", type=float, default=1e9, help="start nothing new after so many seconds")
    parser.add_argument("--first", action="store_true", help="come before the machine's other sessions (root, Linux)")
    parser.add_argument("--quick", action="store_true", help="the quick calibration")
    parser.add_argument(
        "--rounds", type=int, default=4, help="so often all is probed: the pace wanders within a minute"
    )
    parser.add_argument("--again", action="store_true", help="predict anew from the same calibration")
    parser.add_argument("--table", action="store_true", help="only print what lies in the file")
    parser.add_argument("--out", type=Path, help="file of results; runs and calibrations lie beside it")
    parser.add_argument("--at-pace", action="store_true", help="predict each run for a machine as fast as it was then")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="servefit-predict-")) / "predict.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    found = Results(out)
    names = ("embedded", "llamacpp") if args.engine == "both" else (args.engine,)
    if not args.table:
        if args.first:
            first_in_line(os.getpid())
        for name in names:
            slice_of(name, found, out.with_suffix("") / name, args)
    for name in names:
        file = out.with_suffix("") / name / "calibration.json"
        anew = partial(predict_named, load_calibration(file), name) if args.at_pace and file.exists() else None
        if args.json:
            print(json.dumps(jsonable({"engine": name, "loads": results(found.lines, name, anew)})))
        elif results(found.lines, name):
            show(found.lines, name, anew)
    return 0


if __name__ == "__main__":
    sys.exit(main())
