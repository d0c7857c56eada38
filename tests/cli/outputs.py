"""Real `--json` outputs of every command that needs no GPU, key or network: name of the schema -> command lines."""

import shutil
from pathlib import Path

from servefit import EngineConfig, Lengths, Workload, save_run, simulate, write_decision

GOLDEN = Path(__file__).parents[1] / "golden" / "plan-small.json"

PLAN = "plan --model llama-3.1-8b --device rtx-4090 --policy chunked --seats 8,16 --rate 2 -n 60 --isl 256 --osl 32 --seeds 1 --jobs 1"
COST = "bill cost --isl 6200 --cached 6000 --osl 300 --price-in 0.15 --price-cached 0.015"

COMMANDS: dict[str, tuple[str, ...]] = {
    "check": (
        "check --no-sweep --no-servers",
        "check --device rtx-4090 --model llama-3.1-8b",
        "check --device m4-max",
        "check --memory 36GB --bandwidth 273GB/s",
    ),
    "measure": (
        "measure {url}/plain -n 3 --isl 16 --osl 20 --out m1 --quiet",
        "measure {url}/stall -n 1 --osl 20 --no-probe --timeout 0.2 --out m2 --quiet",
    ),
    "explain": (
        "explain runs/a",
        "explain runs/a runs/b --model llama-3.1-8b --device rtx-4090",
        "explain --ttft 780ms --itl 22ms --isl 6200 --osl 300",
        "explain --ttft 145ms --itl 22.4ms --isl 8000 --osl 300 --ttft-p95 190ms --model llama-3.1-8b --device m4-pro-24gb --precision q4_k_m",
    ),
    "calibrate": ("calibrate runs/a runs/b runs/c --out c.json --quiet --force",),
    "simulate": (
        "simulate --device rtx-4090 --model llama-3.1-8b --concurrency 2 -n 10",
        "simulate --device rtx-4090 --model llama-3.1-8b --rate 4 -n 30 --horizon 2 --replicas 2 --out s1",
    ),
    "plan": (PLAN, PLAN + " --ttft-p99 1ms", PLAN + " --precision bf16 --precision int8 --usd-per-hour 2 --peak 4"),
    "decide": ("decide plan.json --out d1.md", "decide decision.md --html r.html"),
    "verify": ("verify decision.md",),
    "bill-cost": (
        COST,
        COST + " --price-out 0.6 --device h100-sxm --model llama-3.1-8b --rate 2",
        "bill cost runs/a --usd-per-hour 2 --capacity 4",
    ),
    "bill-cap": ("bill cap", "bill cap --cap 1.5 -n 100 --isl 100 --osl 100 --price-in 1 --price-out 2"),
    "bill-live": ("bill live fireworks",),
    "learn-cards": ("learn cards",),
    "learn-example": ("learn example", "learn example support-assistant", "learn example how-big-how-fast"),
    "learn-glossary": ("learn glossary", "learn glossary ttft"),
    "engine-list": ("engine list",),
    "devices": ("devices", "devices rtx-4090", "devices m4-max"),
    "models": ("models", "models llama-3.1-8b", "models mixtral-8x7b --on h200", "models llama-3.1-8b --on rtx-4090"),
    "experiment": (
        "experiment speculation --draft-tok 4 --draft-cost 0.1 --itl 20ms",
        "experiment ceiling --run runs/a=16GB --run runs/b=8GB --bandwidth 1008GB/s",
        "experiment context {url}/plain --lengths 16,32 -n 2 --osl 20 --out e1 --quiet",
    ),
    "sweep": (
        "sweep --device rtx-4090 --model llama-3.1-8b --users 1,2,4 --tpot 50ms -n 20 --isl 128 --osl 16 --out sw",
    ),
    "import": ("import llama-bench.json --out im1",),
    "compare": ("compare runs/a runs/a2 --anyway", "compare runs/a runs/a2 --anyway --ttft 500ms"),
    "measure-repeat": ("measure {url}/plain -n 2 --isl 16 --osl 20 --repeat 2 --out m3 --quiet",),
    "config-show": ("config show", "config show --file servefit.toml"),
    "completion": ("completion bash", "completion fish"),
}

SETTINGS = """\
target = "chat"
[targets.chat]
url = "http://127.0.0.1:1"
[workloads.chat]
rate_req_per_s = 2
[objectives]
ttft = "500 ms"
[caps]
usd_per_run = 1.0
"""


def make_folder(home: Path) -> None:
    """The files that the commands name."""
    shutil.copy(GOLDEN, home / "plan.json")
    (home / "llama-bench.json").write_text(
        '[{"n_prompt": 512, "n_gen": 0, "samples_ns": [1000000000]}]', encoding="utf-8"
    )
    (home / "servefit.toml").write_text(SETTINGS, encoding="utf-8")
    for name, users, isl, osl in (("a", 4, 512, 40), ("a2", 4, 512, 40), ("b", 1, 128, 40), ("c", 8, 1024, 60)):
        load = Workload(n=40, concurrency=users, isl=Lengths(mean=isl), osl=Lengths(mean=osl))
        run = simulate(load, model="llama-3.1-8b", device="rtx-4090", config=EngineConfig(seats=4))
        save_run(run, home / "runs" / name)
    write_decision(home / "plan.json", home / "decision.md", deciders=["Ada"], assume=["Half of it is chat."])
