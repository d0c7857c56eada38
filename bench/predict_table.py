"""What the lines of a results file say: the error of each figure, the noise beside it, the orders, the users."""

from collections.abc import Callable
from itertools import combinations

from predict_loads import Pace

from servefit.cli.show import table
from servefit.stats import percentile

LIMITS = {
    "itl_p50": 0.07, "tpot_p50": 0.07, "tok_per_s": 0.07, "tpot_p95": 0.10, "e2e_p50": 0.10, "e2e_p95": 0.10,
    "ttft_p50": 0.15, "ttft_p95": 0.15,
}  # fmt: skip
ORDERS = {"ttft_p95": "TTFT p95", "itl_max": "worst ITL"}

QUIET = 0.20
"""A run counts where our threads waited for a processor less than this share of the time that they wanted one (an engine
whose threads spin makes its own server wait for 17% with 16 users; other programs show as more) ..."""
STEADY = 0.15
"""... and where lone requests just before and after it got their tokens as fast as when the engine was calibrated, to this
share: on a shared machine the same step can take 15% longer some minutes later, which no calibration can know."""


def memory_pace(line: dict) -> float:
    """How much longer a token of a lone request took around this run than when calibrated."""
    return line["pace"][0]


def counts(line: dict) -> bool:
    """Whether the machine was as quiet and as fast in this run as a comparison needs; the run's own figures play no part."""
    return line["waited_frac"] <= QUIET and abs(memory_pace(line) - 1.0) <= STEADY


Anew = Callable[[str, Pace], dict[str, float | None]]
"""(load, pace) -> its figures, predicted for a machine of that pace."""


def compare(predicted: list[dict], repeats: list[dict]) -> dict[str, dict[str, float | None]]:
    """Per figure: predicted, measured (medians), the median error, and half the range of the errors between repeats."""
    out: dict[str, dict[str, float | None]] = {}
    for name in predicted[0]:
        pairs = [(p[name], r[name]) for p, r in zip(predicted, repeats, strict=True) if p[name] is not None and r[name]]
        if not pairs:
            continue
        errors = sorted(p / r - 1 for p, r in pairs)
        out[name] = {
            "predicted": percentile([p for p, _ in pairs], 50), "measured": percentile([r for _, r in pairs], 50),
            "error": percentile(errors, 50), "noise": (errors[-1] - errors[0]) / 2,
        }  # fmt: skip
    return out


def held(name: str, cell: dict, *, saturated: bool) -> bool | None:
    """Whether the figure lies within its limit; None where it is not held to one."""
    if name not in LIMITS or (saturated and name.startswith("ttft")):
        return None
    limit = max(LIMITS[name], cell["noise"] or 0.0) if name.startswith("ttft") else LIMITS[name]
    return abs(cell["error"] or 0.0) <= limit


def results(lines: list[dict], engine: str, anew: Anew | None = None) -> list[dict]:
    """Of each load that was measured: its figures, predicted and measured; with `anew` predicted at each run's pace."""
    mine = [x for x in lines if x.get("engine") == engine]
    found = []
    for p in {x["load"]: x for x in mine if x["kind"] == "predicted"}.values():
        seen = [x for x in mine if x["kind"] == "measured" and x["load"] == p["load"] and counts(x)]
        if seen:
            told = [anew(p["load"], Pace(*x["pace"])) if anew else p["figures"] for x in seen]
            cells = compare(told, [x["figures"] for x in seen])
            found.append({**p, "cells": cells, "repeats": len(seen), "late": p["at"] > min(x["at"] for x in seen)})
    return found


def order(rows: list[dict], figure: str, key: str) -> list[dict]:
    """The rows of the policies, best first, by a figure."""
    mine = [r for r in rows if r["load"].startswith("policy ") and figure in r["cells"]]
    return sorted(mine, key=lambda r: r["cells"][figure][key])


def turned(rows: list[dict], figure: str) -> list[str]:
    """The pairs of policies whose order was predicted the other way round, with how far apart they were measured."""
    found = []
    for a, b in combinations(order(rows, figure, "measured"), 2):
        x, y = a["cells"][figure], b["cells"][figure]
        if x["predicted"] > y["predicted"]:
            apart, noise = y["measured"] / x["measured"] - 1, max(x["noise"] or 0.0, y["noise"] or 0.0)
            found.append(
                f"{_policy(a)} before {_policy(b)}: measured {100 * apart:.0f}% apart, noise {100 * noise:.0f}%"
            )
    return found


def _policy(row: dict) -> str:
    return row["load"].removeprefix("policy ")


def users_line(lines: list[dict], engine: str, targets: dict) -> str | None:
    """How many users stay within the targets, predicted and measured; None where it was not asked."""
    asked = {u: within(lines, engine, u, targets) for u in range(1, 33)}
    tried = {u: ok for u, (_, ok) in asked.items() if ok is not None}
    if not tried:
        return None
    predicted = max((u for u, (p, _) in asked.items() if p), default=0)
    measured = max((u for u, ok in tried.items() if ok), default=0)
    shut = measured + 1 in tried or measured == max(tried)
    words = f"{measured}" if shut else f"below {min(tried)}" if not measured else f"at least {measured}"
    said = f"p95 of TTFT {targets['ttft_p95']:.2f} s and of TPOT {1e3 * targets['tpot_p95']:.1f} ms"
    return f"users within {said}: predicted {predicted}, measured {words} (tried {', '.join(map(str, sorted(tried)))})"


def within(lines: list[dict], engine: str, users: int, targets: dict) -> tuple[bool | None, bool | None]:
    """(predicted, measured by the majority of repeats): whether both targets hold for so many users; None: not asked."""

    def good(x: dict) -> bool:
        return all(x["figures"][k] is not None and x["figures"][k] <= v for k, v in targets.items())

    mine = [x for x in lines if x.get("engine") == engine and x.get("load") == f"users {users}"]
    predicted = [good(x) for x in mine if x["kind"] == "predicted"]
    measured = [good(x) for x in mine if x["kind"] == "measured" and counts(x)]
    return (predicted[-1] if predicted else None), (2 * sum(measured) > len(measured) if measured else None)


def show(lines: list[dict], engine: str, anew: Anew | None = None) -> None:
    """The table: error of each figure, the noise between repeats in brackets, a mark where the limit is passed."""
    rows = [r for r in results(lines, engine, anew) if not r["load"].startswith("users ")]
    names = list(LIMITS)
    cells, passed, total = [], 0, 0
    for r in rows:
        line = [r["load"] + (" (over capacity)" if r["saturated"] else "") + ("*" if r["late"] else "")]
        for name in names:
            cell = r["cells"].get(name)
            if cell is None:
                line.append("-")
                continue
            verdict = held(name, cell, saturated=r["saturated"])
            passed += verdict is True
            total += verdict is not None
            mark = {True: "", False: " !", None: " ·"}[verdict]
            line.append(f"{100 * cell['error']:+.0f}% ({100 * cell['noise']:.0f}){mark}")
        cells.append([*line, str(r["repeats"])])
    table(
        ["load", *names, "runs"], cells, right=range(1, 10),
        title=f"{engine}{', at each run’s pace' if anew else ''}: error (noise) in %, '!' past the limit, '·' not held",
    )  # fmt: skip
    for name in names:
        errors = sorted(abs(r["cells"][name]["error"]) for r in rows if name in r["cells"])
        if errors:
            print(
                f"  {name:10} median {100 * errors[len(errors) // 2]:.1f}%, worst {100 * errors[-1]:.0f}%"
                f" (limit {100 * LIMITS[name]:.0f}%)"
            )
    print(f"  within the limits: {passed} of {total}")
    for figure, what in ORDERS.items():
        if len(order(rows, figure, "measured")) > 1:
            said = [", ".join(map(_policy, order(rows, figure, key))) for key in ("predicted", "measured")]
            print(f"  order by {what}: predicted {said[0]}; measured {said[1]}")
            for pair in turned(rows, figure):
                print(f"    the other way round: {pair}")
    targets = next((x["targets"] for x in lines if x["kind"] == "calibrated" and x["engine"] == engine), None)
    if targets and (line := users_line(lines, engine, targets)):
        print(f"  {line}")
    if any(r["late"] for r in rows):
        print("  * predicted again after it was measured (--again), from the same calibration")
    when = sorted(x["at"] for x in lines if x.get("engine") == engine)
    runs = [x for x in lines if x.get("engine") == engine and x["kind"] == "measured"]
    paces = sorted(memory_pace(x) for x in runs if counts(x))
    print(
        f"  pace of the machine (a lone token) in the runs: {paces[0]:.2f} to {paces[-1]:.2f}, median {paces[len(paces) // 2]:.2f} of when calibrated"
    )
    waits = sorted(x["waited_frac"] for x in runs if counts(x))
    commits = ", ".join(dict.fromkeys(x["commit"] for x in lines if x.get("engine") == engine))
    chips = ", ".join(dict.fromkeys(x["machine"] for x in lines if x.get("machine")))
    print(f"  {chips}, {when[0]} to {when[-1]}, commit {commits}")
    print(
        f"  {len(waits)} runs count; in them our threads waited {100 * waits[0]:.0f} to {100 * waits[-1]:.0f}% of the time"
        f" for a processor; {len(runs) - len(waits)} were left out, as the machine was busier or slower than when calibrated"
    )
