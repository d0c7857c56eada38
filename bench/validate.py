"""How far the planner's physics and engine are from public measurements: `python bench/validate.py DATA_DIR [--json]`.

Every kind of file is recognised by what it holds, not by its name: request logs of vLLM (a folder with meta.json and
requests.jsonl), serving sweeps with percentiles, largest numbers of users under an objective, serving curves with one
TTFT and TPOT a row, decode tables of desktop engines. Nothing is fitted here: step times are those that `plan` uses for
the same device and model. Rows that no hardware could have produced are left out and listed.
"""

import argparse
import csv
import json
import math
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from servefit.engine.config import EngineConfig
from servefit.engine.simulate import simulate
from servefit.errors import ServefitError
from servefit.facts.devices import Device, find_device
from servefit.facts.models import ModelShape, find_model
from servefit.physics.constants import constants_for
from servefit.physics.memory import kv_pool
from servefit.physics.roofline import peak_flop_per_s, prefill_flop
from servefit.physics.steptime import step_s
from servefit.plan.bases import Row, base_of
from servefit.plan.spec import PlanSpec
from servefit.stats import percentile
from servefit.workload.arrivals import schedule
from servefit.workload.requests import Request
from servefit.workload.workload import Lengths, Workload

BIG_BUDGET_TOK, BIG_SEATS = 8192, 1024
"""vLLM's defaults on GPUs of 70 GB or more (EngineArgs.get_batch_defaults, 0.19 to 0.30); TensorRT-LLM's budget too."""
NEAR_FLOOR = 1.25
"""A prefill within 25% of peak arithmetic is not believed: 0.8 of the dense peak is the most that GEMM tables show."""


@dataclass(slots=True)
class Set:
    """Errors of one set: figure -> predicted over measured, less 1, per row."""

    name: str
    kind: str
    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Where it is better and where worse: group -> errors of its main figure."""
    values: list[tuple[str, float | None, float | None]] = field(default_factory=list)
    """(what, measured, predicted), for sets of few numbers."""
    left_out: list[str] = field(default_factory=list)


# --- recognising ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Find every set under DATA_DIR, predict each row, print the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", default="", help="only sets whose name holds this")
    parser.add_argument("--rows", action="store_true", help="every row's error")
    options = parser.parse_args()
    if not options.data_dir.is_dir():
        print(f"{options.data_dir} is no folder.", file=sys.stderr)
        return 2
    sets = find_sets(options.data_dir, options.only)
    if options.json:
        print(json.dumps([summary(s) for s in sets]))
    else:
        for found in sets:
            show(found, rows=options.rows)
    return 0 if sets else 2


def find_sets(folder: Path, only: str) -> list[Set]:
    """Every set that is recognised, in the order of its path."""
    out = []
    for path in sorted(folder.rglob("*")):
        if only not in str(path) or not path.is_file():
            continue
        if path.name == "requests.jsonl" and (path.parent / "meta.json").exists():
            out.append(request_log(path.parent))
        elif path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            columns = set(rows[0]) if rows else set()
            for needed, read in READERS:
                if needed <= columns:
                    out.append(read(path.stem, rows))
                    break
    return out


def model_of(text: str) -> ModelShape:
    """The catalogue's model for a repository's name: the whole of it, or what follows the slash, without its format."""
    tail = text.rpartition("/")[2]
    for name in (text, tail, tail.removesuffix("-FP8"), tail.removesuffix("-Instruct"), *SAME_SHAPE.get(tail, ())):
        try:
            return find_model(name)
        except ServefitError:
            continue
    return find_model(tail)


SAME_SHAPE = {
    "Qwen3-Coder-30B-A3B-Instruct": ("qwen3-30b-a3b",),
    "Qwen2.5-Coder-7B": ("qwen2.5-7b",),
    "gemma-3-4b-it-qat": ("gemma-3-4b",),
}
"""Models that are another one of the catalogue with other weights."""


def device_of(text: str) -> Device:
    """The catalogue's device for what people write: "H100 SXM 80GB (GCP a3-highgpu-1g)", "NVIDIA GeForce RTX 4090"."""
    plain = re.sub(r"\(.*?\)|NVIDIA|GeForce|_", lambda m: " " if m.group() == "_" else "", text).strip()
    tries = [text, plain, re.sub(r"\b80 ?GB\b", "", plain).strip(), plain.replace("80GB", "sxm"), *TYPED.get(text, ())]
    for name in tries:
        try:
            return find_device(name)
        except ServefitError:
            continue
    return find_device(plain)


TYPED = {
    "NVIDIA H100 80GB": ("h100-sxm",),
    "h100_sxm": ("h100-sxm",),
    "Apple M2 Ultra (192GB Mac Studio, 76-core GPU)": ("m2-ultra-192gb",),
    "NVIDIA A100 80GB": ("a100-80gb",),
    "NVIDIA DGX Spark (GB10)": ("dgx-spark",),
}
PRECISION = {"": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "mxfp4", "fp4": "mxfp4", "bf16": "bf16"}


def step_for(model: ModelShape, device: Device, precision: str | None, *, tp: int = 1, ctx_tok: int):
    """The step time that `plan` would use, and its row."""
    from servefit.facts.precisions import find_precision

    row = Row(device=device, model=model, precision=find_precision(precision) if precision else None, tp=tp)
    return base_of(row, (), PlanSpec(), context_tok=ctx_tok).basis.step, row


# --- request logs of vLLM ---------------------------------------------------------------------------------------------


def request_log(folder: Path) -> Set:
    """One run of vLLM with every request's times: the same requests, the same settings."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    start = min(r["arrival_time"] for r in rows)
    requests = [
        Request(id=i, due_s=round(r["arrival_time"] - start, 6), isl=r["input_toks"], osl=r["output_toks"])
        for i, r in enumerate(rows)
    ]
    engine, kv = meta["engine_kwargs"], meta.get("kv_cache") or {}
    device = device_of(
        (meta.get("hardware") or {}).get("device_name") or folder.name.split("_")[0].replace("PRO", " PRO ")
    )
    model = model_of(engine["model"])
    contexts = sorted(r.isl + r.osl for r in requests)
    step, row = step_for(
        model, device, None, tp=engine.get("tensor_parallel_size", 1), ctx_tok=contexts[len(contexts) // 2]
    )
    pool = kv_pool(
        model, device, None, engine["max_num_batched_tokens"], seats=engine["max_num_seqs"], tp=row.tp,
        logged_blocks=kv.get("num_gpu_blocks"),
    )  # fmt: skip
    config = EngineConfig(
        policy="chunked", seats=engine["max_num_seqs"], budget_tok=engine["max_num_batched_tokens"],
        kv_blocks=pool.blocks, block_tok=pool.block_tok, prefix_cache=bool(kv.get("enable_prefix_caching", True)),
    )  # fmt: skip
    # the log's clock starts where the engine queued the request: what lies before it is not part of it
    outcome = simulate(requests, config, without_front_end(step))
    measured = {
        "TTFT": [r["first_token_ts"] - r["queued_ts"] for r in rows],
        "TPOT": [(r["last_token_ts"] - r["first_token_ts"]) / (r["output_toks"] - 1) for r in rows],
        "E2E": [r["last_token_ts"] - r["queued_ts"] for r in rows],
    }
    predicted = {"TTFT": list(outcome.ttft_s), "TPOT": list(outcome.tpot_s), "E2E": list(outcome.e2e_s)}
    out = Set(name=folder.name, kind="request log")
    for name, seen in measured.items():
        for what, figure in (("mean", mean), ("p50", p50), ("p99", p99)):
            out.values.append((f"{name} {what}", figure(seen), figure(predicted[name])))
            out.errors[f"{name} {what}"].append(figure(predicted[name]) / figure(seen) - 1)
    if kv.get("num_gpu_blocks"):
        ours = kv_pool(model, device, None, engine["max_num_batched_tokens"], seats=engine["max_num_seqs"])
        out.values.append(("KV blocks", kv["num_gpu_blocks"], ours.blocks))
        out.errors["KV blocks"].append(ours.blocks / kv["num_gpu_blocks"] - 1)
    return out


def without_front_end(step):
    """The step without what a request costs outside the engine."""
    from dataclasses import replace

    return replace(step, front_end_s=0.0, front_end_per_tok_s=0.0)


def mean(values: list[float]) -> float:
    """The mean."""
    return math.fsum(values) / len(values)


def p50(values: list[float]) -> float:
    """The median by nearest rank."""
    return percentile(values, 50)


def p99(values: list[float]) -> float:
    """The 99th percentile by nearest rank."""
    return percentile(values, 99)


# --- serving sweeps with percentiles ----------------------------------------------------------------------------------

SWEEP = {"workload", "isl", "osl", "concurrency", "ttft_p99_ms", "tpot_p99_ms", "itl_p50_ms", "kv_cache_tokens"}
PROMPTS_A_USER = 5


def closed(row: dict[str, str], users: int, per_user: int = PROMPTS_A_USER):
    """One row of a sweep, simulated: all users start at once, each asks again when answered."""
    model, device = model_of(row["model"]), device_of(row["gpu"])
    isl, osl = int(row["isl"]), int(row["osl"])
    step, _ = step_for(model, device, PRECISION[row["precision"]], tp=int(row["tp"]), ctx_tok=isl + osl // 2)
    config = EngineConfig(
        policy="chunked", seats=BIG_SEATS, budget_tok=BIG_BUDGET_TOK, kv_blocks=int(row["kv_cache_tokens"]) // 16
    )
    requests = [Request(id=i, due_s=0.0, isl=isl, osl=osl) for i in range(users * per_user)]
    return simulate(requests, config, step, concurrency=users)


def sweep(name: str, rows: list[dict[str, str]]) -> Set:
    """A closed-loop sweep over the number of users."""
    out = Set(name=name, kind="serving sweep")
    for row in rows:
        users = int(row["concurrency"])
        label = f"{row['workload']} {row['isl']}/{row['osl']} x{users}"
        if below_floor(row, users):
            out.left_out.append(f"{label}: p99 TTFT {row['ttft_p99_ms']} ms is below what reading the prompts takes")
            continue
        outcome = closed(row, users)
        itl, group = outcome.itl_s, "up to 128 users" if users <= 128 else "more than 128 users"
        for figure, value, column in (
            ("TTFT p99", p99(list(outcome.ttft_s)) * 1e3, "ttft_p99_ms"),
            ("TPOT p99", p99(list(outcome.tpot_s)) * 1e3, "tpot_p99_ms"),
            ("ITL p50", itl.p50 * 1e3, "itl_p50_ms"),
            ("output tok/s", outcome.output_tok / outcome.duration_s, "out_tok_s"),
        ):
            error = value / float(row[column]) - 1
            out.errors[f"{figure}, {group}"].append(error)
            out.groups[f"{figure}: {label}"].append(error)
    return out


def below_floor(row: dict[str, str], users: int) -> bool:
    """Whether the first burst's prompts were read faster than peak arithmetic (nearly) allows: a cached prefix."""
    model, device = model_of(row["model"]), device_of(row["gpu"])
    peak = peak_flop_per_s(device, PRECISION[row["precision"]])
    if peak is None:
        return False
    floor = users * prefill_flop(model, int(row["isl"])) / (peak.value * int(row["tp"]))
    return float(row["ttft_p99_ms"]) / 1e3 < NEAR_FLOOR * floor


# --- largest numbers of users -----------------------------------------------------------------------------------------

CAPACITY = {"workload", "isl", "osl", "slo_ttft_p99_ms", "slo_itl_p50_ms", "max_users_slo"}


def users_that_fit(name: str, rows: list[dict[str, str]]) -> Set:
    """The largest number of users under an objective, by bisection, on the sweep's device (an H100)."""
    out = Set(name=name, kind="largest number of users")
    for row in rows:
        full = {**row, "gpu": row.get("gpu", "h100-sxm"), "tp": row.get("tp", "1")}
        per_user = int(row["isl"]) + int(row["osl"])
        full["kv_cache_tokens"] = str(int(row.get("max_users_kv_cache", "0") or 0) * per_user)
        limit = int(row["max_users_slo"]) * 2

        def holds(users: int, full=full, row=row) -> bool:
            outcome = closed(full, users)
            ttft, itl = p99(list(outcome.ttft_s)) * 1e3, outcome.itl_s.p50 * 1e3
            return ttft <= float(row["slo_ttft_p99_ms"]) and itl <= float(row["slo_itl_p50_ms"])

        low, high = 1, limit
        if holds(high):
            low = high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        measured = int(row["max_users_slo"])
        more = row.get("lower_bound") == "True"
        out.values.append(
            (f"{row['workload']} {row['isl']}/{row['osl']}" + (" (at least)" if more else ""), measured, low)
        )
        out.errors["users"].append(min(0.0, low / measured - 1) if more else low / measured - 1)
    return out


# --- serving curves ---------------------------------------------------------------------------------------------------

CURVES = {"model", "system", "engine", "tp", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms"}


def curves(name: str, rows: list[dict[str, str]]) -> Set:
    """Many models, engines and tensor-parallel sizes; one TTFT and TPOT a row, steady closed loop."""
    out = Set(name=name, kind="serving curves")
    for row in rows:
        if not row["concurrency"] or not row["tpot_ms"]:
            out.left_out.append(f"{row.get('id', '?')}: no concurrency or no TPOT")
            continue
        try:
            predicted = curve(row)
        except ServefitError as error:
            out.left_out.append(f"{row.get('id', '?')}: {error.message}")
            continue
        tpot, ttft = predicted
        error = tpot * 1e3 / float(row["tpot_ms"]) - 1
        out.errors["TPOT"].append(error)
        out.errors["TTFT"].append(ttft * 1e3 / float(row["ttft_ms"]) - 1)
        short = row["model"].rpartition("/")[2]
        for group in (
            f"model {short}",
            f"engine {row['engine']}",
            f"tp {row['tp']}",
            f"users {row['concurrency']}",
            f"osl {row['osl']}",
        ):
            out.groups[group].append(error)
    return out


def curve(row: dict[str, str]) -> tuple[float, float]:
    """Mean TPOT and TTFT of one row."""
    model, device = model_of(row["model"]), device_of(row["system"])
    isl, osl, users, tp = (int(row[k]) for k in ("isl", "osl", "concurrency", "tp"))
    dp = int(row.get("attn_dp") or 1)
    precision = PRECISION.get(row.get("gemm_quant", ""), "bf16")
    step, grid = step_for(model, device, precision, tp=tp, ctx_tok=isl + osl // 2)
    pool = kv_pool(model, device, grid.precision, BIG_BUDGET_TOK, seats=256, tp=tp)
    seats = max(int(row.get("batch_size") or users), 1)
    config = EngineConfig(
        policy="chunked", seats=min(max(seats, users), BIG_SEATS), budget_tok=BIG_BUDGET_TOK, kv_blocks=pool.blocks * dp
    )
    n = max(10 * users, 24)
    requests = [Request(id=i, due_s=0.0, isl=isl, osl=osl) for i in range(n)]
    outcome = simulate(requests, config, step, concurrency=users)
    return mean(list(outcome.tpot_s)), mean(list(outcome.ttft_s))


# --- decode tables of desktop engines ---------------------------------------------------------------------------------

DECODE = {"chip", "model", "quant", "model_gb", "test", "tok_s"}
GB_PER_GIB = 2**30 / 1e9


def decode_table(name: str, rows: list[dict[str, str]]) -> Set:
    """Single-stream decode of one model on many chips: bytes of the file over bandwidth, and a fixed cost."""
    out = Set(name=name, kind="decode table")
    for row in rows:
        if not row["test"].startswith("tg") or not row["bw_spec_gbs"]:
            continue
        constants = constants_for(find_device("m1-max-32gb"))
        bytes_ = float(row["model_gb"]) * 1e9
        seconds = constants.const_s + bytes_ / (float(row["bw_spec_gbs"]) * 1e9 * constants.weights_eff)
        error = 1 / seconds / float(row["tok_s"]) - 1
        out.errors["decode tok/s"].append(error)
        out.groups[f"quant {row['quant']}"].append(error)
        out.groups[f"chip {row['chip']}"].append(error)
    return out


CARDS = {"device", "bw_spec_gbs", "model", "quant", "model_gb", "tg128_tok_s"}


def card_table(name: str, rows: list[dict[str, str]]) -> Set:
    """Single-stream decode of one file on many cards: what the datasheet's bandwidth allows, and what `plan` says.

    `plan` knows no constants of llama.cpp on these cards: it takes those of vLLM, or the datasheet's bound.
    """
    out = Set(name=name, kind="decode table")
    for row in rows:
        measured = float(row["tg128_tok_s"])
        if row["bw_spec_gbs"]:
            ceiling = float(row["bw_spec_gbs"]) / float(row["model_gb"])
            out.errors["decode tok/s, bandwidth alone"].append(ceiling / measured - 1)
            out.groups[f"backend {row['backend']}"].append(ceiling / measured - 1)
        try:
            step, _ = step_for(model_of(row["model"]), device_of(row["device"]), row["quant"].lower(), ctx_tok=64)
        except ServefitError as error:
            out.left_out.append(f"{row['device']}: {error.message}")
            continue
        seconds = step_s(step, seqs=1, kv_tok=64)
        out.errors["decode tok/s, as plan"].append(1 / seconds / measured - 1)
    return out


BATCHED = {"device", "model_repo", "pp", "tg", "batch", "t_tg_s", "tg_tok_s"}


def batched_table(name: str, rows: list[dict[str, str]]) -> Set:
    """llama.cpp's batched bench: `batch` answers of `tg` tokens decoded together after prompts of `pp` each."""
    out = Set(name=name, kind="decode table")
    for row in rows:
        try:
            model = model_of(row["model_repo"].removesuffix("-GGUF").removesuffix("-Q8_0").removesuffix("-Q4_0"))
            quant = "mxfp4" if "gpt-oss" in row["model_repo"] else "q4_0" if "qat" in row["model_repo"] else "q8_0"
            pp, tg, batch = (int(row[k]) for k in ("pp", "tg", "batch"))
            step, _ = step_for(model, device_of(row["device"]), quant, ctx_tok=pp + tg // 2)
        except ServefitError as error:
            out.left_out.append(f"{row['device']}, {row['model_repo']}: {error.message}")
            continue
        seconds = step_s(step, seqs=batch, kv_tok=batch * (pp + tg // 2))
        error = batch / seconds / float(row["tg_tok_s"]) - 1
        out.errors["decode tok/s"].append(error)
        out.groups[f"model {row['model_repo']}"].append(error)
        out.groups[f"batch {batch:3d}"].append(error)
        out.groups[f"device {row['device']}"].append(error)
    return out


AS_STATED = ("vllm", "vllm+batch_size")
"""Configurations that a row describes in full; the others add a quantisation, a draft model or a prefix cache."""
STAGES = {"config", "requested_rate", "achieved_rate", "isl_mean", "osl_mean", "tpot_from_e2e_ms", "max_num_seqs"}


def stages(name: str, rows: list[dict[str, str]]) -> Set:
    """Open-loop stages of inference-perf: Poisson arrivals at the achieved rate, mean lengths, the stated seats.

    TPOT is (E2E - TTFT) / (tokens - 1): the client's own is below what reading the weights takes. Stages in which the
    engine fell behind are left out: what limited them was the client.
    """
    out = Set(name=name, kind="open loop")
    for row in rows:
        label = f"{row['config']}, {row['requested_rate']}/s"
        if row["config"] not in AS_STATED:
            out.left_out.append(f"{row['config']}: its precision, draft model or shared prefix is not stated")
            continue
        asked, achieved = float(row["requested_rate"]), float(row["achieved_rate"])
        if achieved < 0.95 * asked or float(row["req_s"]) < 0.9 * asked:
            out.left_out.append(f"{label}: {row['req_s']} requests a second were answered")
            continue
        model, device = model_of(row["model"]), device_of(row["gpu"])
        isl, osl, gpus = round(float(row["isl_mean"])), round(float(row["osl_mean"])), int(row["n_gpu"])
        step, _ = step_for(model, device, None, ctx_tok=isl + osl // 2)
        seats = int(row["max_num_seqs"] or BIG_SEATS)
        pool = kv_pool(model, device, None, BIG_BUDGET_TOK, seats=seats)
        config = EngineConfig(policy="chunked", seats=seats, budget_tok=BIG_BUDGET_TOK, kv_blocks=pool.blocks)
        n = max(200, min(int(row["sent"]) // gpus, 4000))
        lengths = {"isl": Lengths(mean=isl), "osl": Lengths(mean=osl)}
        outcome = simulate(schedule(Workload(n=n, rate_req_per_s=achieved / gpus, **lengths)), config, step)
        out.errors["TPOT mean"].append(mean(list(outcome.tpot_s)) * 1e3 / float(row["tpot_from_e2e_ms"]) - 1)
        out.errors["E2E mean"].append(mean(list(outcome.e2e_s)) * 1e3 / float(row["e2e_mean_ms"]) - 1)
        out.errors["TTFT mean"].append(mean(list(outcome.ttft_s)) * 1e3 / float(row["ttft_mean_ms"]) - 1)
        out.groups[f"{row['config']} on {gpus} GPU"].append(out.errors["TPOT mean"][-1])
    return out


READERS = (
    (SWEEP, sweep),
    (CAPACITY, users_that_fit),
    (CURVES, curves),
    (DECODE, decode_table),
    (CARDS, card_table),
    (BATCHED, batched_table),
    (STAGES, stages),
)


# --- showing ----------------------------------------------------------------------------------------------------------


def summary(found: Set) -> dict[str, object]:
    """The set as plain values."""
    return {
        "name": found.name,
        "kind": found.kind,
        "errors": {
            k: {"n": len(v), "median_abs": median_abs(v), "median": median(v), "p90_abs": p90_abs(v)}
            for k, v in found.errors.items()
        },
        "groups": {k: {"n": len(v), "median_abs": median_abs(v), "median": median(v)} for k, v in found.groups.items()},
        "values": [{"what": w, "measured": m, "predicted": p} for w, m, p in found.values],
        "left_out": found.left_out,
    }


def median(values: list[float]) -> float | None:
    """The median by nearest rank; None of nothing."""
    return percentile(values, 50)


def median_abs(values: list[float]) -> float | None:
    """The median size."""
    return percentile([abs(v) for v in values], 50)


def p90_abs(values: list[float]) -> float | None:
    """The size that nine of ten stay below."""
    return percentile([abs(v) for v in values], 90)


def show(found: Set, *, rows: bool) -> None:
    """Print one set."""
    print(f"\n{found.name} ({found.kind})")
    for what, measured, predicted in found.values:
        print(f"  {what:28s} measured {measured:12.4f}   predicted {predicted:12.4f}   {predicted / measured - 1:+.1%}")
    if not found.values or found.kind == "serving sweep":
        for figure, errors in found.errors.items():
            print(
                f"  {figure:36s} n {len(errors):4d}   median |error| {median_abs(errors):6.1%}   bias {median(errors):+6.1%}   p90 {p90_abs(errors):6.1%}"
            )
    if found.kind != "serving sweep" or rows:
        for group, errors in sorted(found.groups.items()):
            print(
                f"    {group:40s} n {len(errors):4d}   median |error| {median_abs(errors):6.1%}   bias {median(errors):+6.1%}"
            )
    reasons = Counter(found.left_out).most_common()
    for line, count in reasons[:12]:
        print(f"  left out: {line}" + (f" ({count} rows)" if count > 1 else ""))
    if len(reasons) > 12:
        print(f"  left out: {sum(count for _, count in reasons[12:])} rows more")


if __name__ == "__main__":
    raise SystemExit(main())
