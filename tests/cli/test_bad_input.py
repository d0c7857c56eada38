"""Bad input to every command: exit code 2, 3 or 5, one sentence and a hint on stderr, never a traceback."""

import shlex
from pathlib import Path

import pytest

from cli.outputs import make_folder

PLAN = "plan --model llama-3.1-8b --device rtx-4090 --rate 2 -n 20 --isl 64 --osl 8 --seeds 1 --jobs 1 --seats 4 --policy chunked --out o.json --quiet"
SIM = "simulate --device rtx-4090 --model llama-3.1-8b --concurrency 2 -n 4"
BAD_FILES = (
    "missing.json",
    "folder",
    "binary.bin",
    "empty.json",
    "list.json",
    "wrong.json",
    "half.json",
    "latin.json",
    "deep.json",
    "nan.json",
    "digits.json",
)
"""Missing, a folder, binary, empty, JSON of another kind (two), torn, not UTF-8, nested without end, not a number, too long a one."""

ALLOWED = {("config", "empty.json")}

FILES = {
    "explain": "explain {}",
    "explain model": "explain --ttft 1s --itl 20ms --isl 10 --osl 10 --model {}",
    "calibrate": "calibrate {} --out c2.json --quiet",
    "calibrate import": "calibrate --import {} --out c2.json",
    "simulate workload": SIM.replace("--concurrency 2 -n 4", "--workload {}"),
    "simulate trace": SIM.replace("--concurrency 2 -n 4", "--trace {}"),
    "simulate calibration": "simulate --calibration {} --concurrency 2 -n 4",
    "simulate model": "simulate --device rtx-4090 --model {} --concurrency 2 -n 4",
    "plan file": "plan {} --quiet --out o.json",
    "plan calibration": "plan --calibration {} --model llama-3.1-8b --rate 2 --quiet --out o.json",
    "plan quality": PLAN + " --quality {} --quality-at-least 0.5",
    "decide": "decide {} --out d.md",
    "decide run": "decide plan.json --out d.md --force --run {}",
    "verify": "verify {}",
    "verify against": "verify decision.md --against {}",
    "compare": "compare runs/a {}",
    "config": "config show --file {}",
    "devices": "devices {}",
    "models": "models {}",
    "import": "import {} --out imported",
    "learn deck": "learn cards --deck {}",
    "experiment ceiling": "experiment ceiling {} --bandwidth 100GB/s",
    "bill cost": "bill cost {} --price-in 1",
    "measure workload": "measure http://127.0.0.1:1 --workload {}",
}

VALUES = [
    *(f"{SIM} {flag} {value}" for flag in ("--seats", "--budget-tok", "-n", "--isl", "--osl", "--replicas", "--block-tok") for value in ("0", "-3", "x", "1e99", "2.5")),
    *(f"simulate --device rtx-4090 --model llama-3.1-8b -n 4 --rate {value}" for value in ("0", "-1", "nan", "x", "inf")),
    *(f"{SIM} {more}" for more in ("--policy best", "--precision fp3", "--kv-bits 0", "--kv-bits -8", "--tp 0", "--horizon 0", "--horizon -1", "--accept 2 --draft-tok 4", "--draft-tok -1 --accept 0.5", "--router best --replicas 2", "--engine best", "--calibration c.json", "--seed x")),
    "simulate --device nothing --model llama-3.1-8b --rate 1", "simulate --device rtx-4090 --model nothing --rate 1", "simulate --model llama-3.1-8b --rate 1", "simulate --device rtx-4090 --model llama-3.1-8b",
    *(f"{PLAN} {more}" for more in ("--ttft-p99 0", "--ttft-p99 -1s", "--ttft-p99 soon", "--ttft-p99 ''", "--tpot-p99 10lightyears", "--goodput 0%", "--goodput 200%", "--goodput x", "--seats 0", "--seats a,b", "--seats -4", "--seats ''", "--policy best", "--precision fp3", "--budget-tok 0", "--replicas 0", "--tp 0", "--jobs 0", "--pick best", "--headroom 2", "--peak -1", "--usd-per-hour 0", "--kv-blocks -1", "--kv-bits 0", "--seeds 0", "--concurrency 4", "--arrivals never", "--burstiness 0 --arrivals gamma", "--engine best", "--shared-prefix -1", "-n 0", "--isl 0", "--osl -5", "--rate 0", "--rate nan", "--quality-at-least 0.5")),
    "plan", "plan --model llama-3.1-8b --rate 2", "plan --device rtx-4090 --rate 2 --quiet", "plan --model llama-3.1-8b --device rtx-4090 --quiet",
    *(f"check --no-sweep --no-servers {more}" for more in ("--memory x", "--memory 0GB --bandwidth 1GB/s", "--memory -1GB --bandwidth 1GB/s", "--memory 36GB --bandwidth 0", "--memory 36GB --bandwidth fast", "--memory 36GB", "--usable 0", "--usable 2", "--device nothing", "--precision fp3", "--model nothing")),
    *(f"explain {typed}" for typed in ("--ttft x --itl 20ms --isl 10 --osl 10", "--ttft -1s --itl 20ms --isl 10 --osl 10", "--ttft 1s --itl 20ms --isl 0 --osl 10", "--ttft 1s --itl 20ms --isl x --osl 10", "--e2e 7s", "--ttft 1s", "", "--ttft 1s --itl 20ms --isl 10 --osl -4", "--ttft 1s --itl 20ms --isl 10 --osl 10 --device nothing --model llama-3.1-8b", "runs/a runs/b runs/c")),
    *(f"bill cost {more}" for more in ("", "--isl 10", "--isl -1 --osl 1 --price-in 1", "--isl 10 --osl 10 --price-in -1", "--isl 10 --cached 20 --osl 1 --price-in 1 --price-cached 0.1", "--isl 10 --osl 1 --price-in x", "--isl 10 --osl 1 --token-model nothing", "--isl 10 --osl 1 --usd-per-hour 0", "--isl 10 --osl 1 --price-in 1 --calls 0", "--isl 10 --osl 1 --price-in 1 --batch-frac 2")),
    *(f"bill cap {more}" for more in ("--cap x", "--cap -1 -n 1 --isl 1 --osl 1 --price-in 1 --price-out 1", "-n 0 --isl 1 --osl 1 --price-in 1 --price-out 1", "-n 5")),
    "bill live nowhere", "bill live", "bill live --stop nothing", "bill nothing",
    "verify", "verify decision.md --format best", "decide", "decide plan.json --candidate nothing --out d.md", "decide plan.json --out d.md --date yesterday", "decide plan.json --status maybe", "decide plan.json", "decide decision.md",
    "calibrate", "calibrate --quick nowhere.invalid:1 --quiet", "calibrate runs/a --budget x", "calibrate http://127.0.0.1:1 --quiet",
    "measure http://127.0.0.1:1 -n 1", "measure not-a-target", "measure http://127.0.0.1:1 -n 0", "measure http://127.0.0.1:1 -n -4", "measure http://127.0.0.1:1 --isl 0", "measure http://127.0.0.1:1 --rate 0", "measure http://127.0.0.1:1 --rate 1 --concurrency 2", "measure http://127.0.0.1:1 --dialect best", "measure ftp://127.0.0.1/", "measure http://127.0.0.1:99999", "measure http://127.0.0.1:1 --timeout 0", "measure http://127.0.0.1:1 --api-key-env NOT_SET_ANYWHERE", "measure http://127.0.0.1:1 --resume",
    "devices nothing", "devices --kind best", "models nothing", "models llama-3.1-8b --on nothing", "models llama-3.1-8b --on rtx-4090 --context 0", "models llama-3.1-8b --kv-bits x", "models --on rtx-4090 --precision fp3 llama-3.1-8b",
    "learn example nothing", "learn example support-assistant --set x", "learn example support-assistant --set x=1", "learn example support-assistant --set isl_tok=many", "learn glossary nothing", "learn cards --folder missing", "learn nothing",
    f"{SIM} --replicas {'9' * 400}", "explain --ttft 1e-308 --itl 20ms --isl 10 --osl 10", "explain --ttft 1s --itl 20ms --isl 10 --osl 10 --ttft-p95 1e400", "bill cost --isl 10 --cached 1e5000 --osl 1 --price-in 1 --price-cached 1",
    "check --memory 36GB --bandwidth 1GB/s --usable nan", "check --memory 36GB --bandwidth 1GB/s --usable 1e-308", "measure http://127.0.0.1:1 --rate 1 --arrivals gamma --burstiness 1e308",
    f"{SIM} --kv-bits {'9' * 400}", f"{SIM} --draft-tok {'9' * 400}",
    *(line.format("a" * 5000) for line in ("verify {}", "decide {} --out d.md", "models {}", "calibrate {}", "plan plan.toml --out {}/o.json --quiet", "decide plan.json --out {}")), "decide plan.json --out d.md --force --run loop",
    "simulate --device rtx-4090 --model llama-3.1-8b --trace minus",
    "experiment ceiling", "experiment ceiling --run runs/a=x --bandwidth 1GB/s", "experiment ceiling --run x --bandwidth 1GB/s", "experiment speculation", "experiment speculation --draft-tok 0 --draft-cost 0.1 --itl 20ms", "experiment speculation --draft-tok 4 --draft-cost -1 --itl 20ms", "experiment context http://127.0.0.1:1 --lengths x", "experiment context http://127.0.0.1:1 --lengths 10", "experiment prefix http://127.0.0.1:1 -n 0", "experiment nothing",
    "sweep", "sweep --device rtx-4090 --model llama-3.1-8b --users x --tpot 50ms", "sweep --device rtx-4090 --model llama-3.1-8b --users 0 --tpot 50ms", "sweep --device rtx-4090 --model llama-3.1-8b --users 1,2 --rates 1,2 --tpot 50ms", "sweep --device nothing --model llama-3.1-8b --users 1,2 --tpot 50ms", "sweep --device rtx-4090 --model llama-3.1-8b --users 1,2 --tpot x",
    "compare runs/a", "compare runs/a runs/b --confidence 2 --anyway", "compare runs/a runs/a2 --ttft x --anyway",
    "engine start nothing", "engine start embedded --policy best", "engine start embedded --seats 0", "engine start embedded --port -1", "engine start embedded --model-file missing.gguf", "engine stop nothing",
    "config schema nothing", "config nothing", "completion tcsh", "nothing", "chekc", "--nothing", "web --port x", "web --port 99999", "web --folder missing.json", "tour --out folder",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good files, and ten kinds of bad ones."""
    home = tmp_path_factory.mktemp("bad")
    make_folder(home)
    (home / "folder").mkdir()
    (home / "folder" / "something.txt").write_text("x", encoding="utf-8")
    (home / "binary.bin").write_bytes(bytes(range(256)) * 40)
    (home / "empty.json").write_bytes(b"")
    (home / "list.json").write_text("[1, 2, 3]", encoding="utf-8")
    (home / "wrong.json").write_text('{"schema_version": "one", "rows": {"a": null}}', encoding="utf-8")
    (home / "half.json").write_text('{"schema_version": 1, "cand', encoding="utf-8")
    (home / "latin.json").write_bytes('{"name": "Zoë"}'.encode("latin-1"))
    (home / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (home / "digits.json").write_text("9" * 6000, encoding="utf-8")
    (home / "minus").mkdir()
    (home / "minus" / "run.json").write_text('{"schema_version": 1, "kind": "measured"}', encoding="utf-8")
    row = '{"id": "\\ud800", "status": "ok", "due_s": 0.0, "isl": -5, "osl": -5}'
    (home / "minus" / "requests.jsonl").write_text(row + "\n", encoding="utf-8")
    (home / "loop").symlink_to("loop")
    (home / "nan.json").write_text('{"schema_version": NaN}', encoding="utf-8")
    return home


def _call(line: str, folder: Path, cli, monkeypatch) -> None:
    """The answer is one sentence and a hint, with an exit code that DESIGN knows; stdout holds no half answer."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SERVEFIT_LEDGER", str(folder / "spend.jsonl"))
    for key in ("FIREWORKS_API_KEY", "TOGETHER_API_KEY", "HF_TOKEN", "RUNPOD_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    code, out, err = cli(*shlex.split(line))
    said = [text for text in err.splitlines() if text.startswith("servefit: ")]
    assert code in (2, 3, 4, 5), f"exit code {code}\n{out[-500:]}\n{err}"
    assert len(said) == 1 and len(said[0]) > 16, err
    assert "Traceback" not in err
    assert "\n  hint: " in err, f"no hint: {err}"
    assert len(said[0]) < 600, f"not one sentence: {said[0][:300]}"


@pytest.mark.parametrize("bad", BAD_FILES)
@pytest.mark.parametrize("name", FILES)
def test_bad_file(name, bad, folder, cli, monkeypatch):
    """Each command that reads a file refuses each kind of bad one."""
    if (name, bad) in ALLOWED:
        pytest.skip("an empty settings file sets nothing, which is allowed")
    _call(FILES[name].format(bad), folder, cli, monkeypatch)


@pytest.mark.parametrize("line", VALUES)
def test_bad_value(line, folder, cli, monkeypatch):
    """Each command refuses zero, negative, huge, unknown and misspelt values, and questions that lack something."""
    _call(line, folder, cli, monkeypatch)


def test_half_a_surrogate_pair_can_be_shown(folder, cli, monkeypatch):
    """What a server sent in a row is shown escaped where stdout cannot hold it."""
    monkeypatch.chdir(folder)
    code, out, _ = cli("export", "minus", "--csv")
    assert (code, "\\ud800" in out) == (0, True)


def test_a_file_is_no_run(folder, cli, monkeypatch):
    """Who names a plan where a run is wanted hears so, and nothing of permissions."""
    monkeypatch.chdir(folder)
    for verb in ("compare plan.json decision.md", "explain plan.json", "export plan.json --csv"):
        code, _, err = cli(*verb.split())
        assert code == 2 and "plan.json is a file, not a run." in err and "permission" not in err, err


def test_a_target_at_another_percentile_names_p(cli):
    """--ttft-p95 is --ttft with --p 95, and not its neighbour --ttft-p99; a verb that takes no targets says nothing of them."""
    for verb in ("plan", "sweep"):
        code, _, err = cli(verb, "--ttft-p95", "1s")
        assert code == 2 and "Give --ttft with --p 95" in err and "p99" not in err
    code, _, err = cli("check", "--ttft-p95", "1s")
    assert code == 2 and "--p 95" not in err


@pytest.mark.parametrize("group", ["engine", "config", "experiment", "bill"])
def test_a_group_alone_shows_its_verbs(group, cli):
    """As --help does: who types half a command looks for the other half."""
    assert cli(group) == (0, cli(group, "--help")[1], "")


def test_a_missing_load_is_named_by_its_flags(cli):
    """On the command line the flags are what a person can type."""
    _, _, err = cli("simulate", "--device", "rtx-4090", "--model", "llama-3.1-8b")
    assert "--rate, --concurrency or --trace" in err
