"""The docs tell the truth: every command in them exists or runs, every page is reachable, what is generated is current."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from servefit.cli.main import VERBS, main
from servefit.facts.devices import find_device
from servefit.learn.glossary import all_terms

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NOT_COMMANDS = {"toml", "json", "python", "text", "markdown"}

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _commands() -> list[tuple[str, tuple[str, ...]]]:
    """Every `servefit ...` in a fenced block, as (page, words)."""
    found = []
    for page in PAGES:
        for kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
            if kind in NOT_COMMANDS:
                continue
            for line in block.splitlines():
                for text in re.findall(r"(?<![\w/-])servefit [^;|&>()`]*", line.split(" #")[0]):
                    if "pip install" not in line and "podman build" not in line and "entry:" not in line:
                        found.append((str(page.relative_to(ROOT)), tuple(shlex.split(text.strip().rstrip('"'))[1:])))
    return sorted(set(found))


COMMANDS = _commands()

CHEAP = (
    "devices", "models llama", "models config.json", "config show", "config schema", "completion", "check --memory",
    "verify decision.md", "decide plan.json", "decide decision.md", "verify decision.zip", "explain --ttft", "explain runs/load", "bill cost --isl",
    "learn cards", "learn glossary", "learn example", "simulate --device",
)  # fmt: skip
NEEDS = ("verify decision.md --rerun",)  # the golden plan's schedule is not today's


def _id(case) -> str:
    return f"{case[0]}: {' '.join(case[1])[:60]}"


@pytest.mark.parametrize("case", COMMANDS, ids=_id)
def test_command_is_real(case):
    """Verb, members, options, choices and numbers of each command are what the command line takes."""
    words = [w for w in case[1] if w != "..."]
    command: click.Command = main
    context = click.Context(main, info_name="servefit")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        member = command.get_command(context, words[0])
        if member is None:
            assert not command.list_commands(context) or getattr(command, "invoke_without_command", False), words
            break
        command, words = member, words[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    if words in (["--help"], ["--version"]):
        return
    try:
        command.make_context(command.name, words, parent=context.parent)
    except click.BadParameter as error:
        assert error.message.endswith("does not exist."), error.message  # noqa: PT017 - the reader's folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the docs speak of, made from the golden plan and simulated runs."""
    from servefit import EngineConfig, Lengths, Workload, save_run, simulate, write_decision

    home = tmp_path_factory.mktemp("docs")
    shutil.copy(ROOT / "tests" / "golden" / "plan-small.json", home / "plan.json")
    load = Workload(n=40, concurrency=4, isl=Lengths(mean=512), osl=Lengths(mean=32))
    run = simulate(load, model="llama-3.1-8b", device="rtx-4090", config=EngineConfig(seats=4))
    for name in ("load", "rate4", "real0"):
        save_run(run, home / "runs" / name)
    extend = (DOCS / "guides" / "extend.md").read_text(encoding="utf-8")
    device, card = (block for kind, block in FENCE.findall(extend) if kind == "toml")
    (home / "my-gpu.toml").write_text(device, encoding="utf-8")
    (home / "ours.toml").write_text(card, encoding="utf-8")
    for kind, block in FENCE.findall((DOCS / "reference" / "files.md").read_text(encoding="utf-8")):
        if kind == "toml":
            (home / "workload.toml").write_text(block.replace("n = 500", "n = 20"), encoding="utf-8")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }  # fmt: skip
    (home / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_decision(home / "plan.json", home / "decision.md", deciders=["Ada"], assume=["Half of it is chat."])
    return home


@pytest.mark.parametrize("case", [c for c in COMMANDS if " ".join(c[1]).startswith(CHEAP)], ids=_id)
def test_cheap_command_runs(case, folder, cli, monkeypatch):
    """The commands that need no server, network, GPU or key run as they are written."""
    words = list(case[1])
    if " ".join(words).startswith(NEEDS) or "--against" in words:
        pytest.skip("needs a measurement of the real system")
    monkeypatch.chdir(folder)
    if words[0] == "decide" and not words[1].endswith(".md"):
        words += ["--force"]
        words = [w for w in words if w != "ID"]
    if words[:2] == ["verify", "decision.zip"] and not (folder / "decision.zip").exists():
        assert cli("decide", "decision.md", "--bundle", "decision.zip")[0] == 0
    code, out, err = cli(*words)
    assert code == 0 or (code == 5 and out), f"{code}\n{out}\n{err}"


def test_engines_of_the_docs_are_what_the_engine_takes():
    """Each `engine start embedded` of the docs passes the engine's own check: seats, and a budget that its policy uses.

    The tutorial has one for every policy that its own plan may pick, so that no machine's decision is without its command.
    """
    from servefit.servers.engines import _config, find_engine

    kind, head, shown = find_engine("embedded"), SimpleNamespace(metadata={}), set()
    for page, words in COMMANDS:
        if words[:3] != ("engine", "start", "embedded"):
            continue
        command = main.get_command(click.Context(main), "engine").commands["start"]
        said = command.make_context("start", list(words[2:])).params
        known = {
            name: said.get(name) for name in ("policy", "seats", "budget_tok", "context_tok", "timeout_s", "kv_tok")
        }
        _config(kind, Path("model"), head, port=1, prefix_cache=False, threads=None, speculation=None, **known)
        shown |= {said["policy"]} if page == "docs/tutorial.md" else set()
    plan = next(tomllib.loads(b) for k, b in FENCE.findall((DOCS / "tutorial.md").read_text("utf-8")) if k == "toml")
    assert set(plan["policies"]) <= shown


def test_something_was_found():
    """The search for commands finds the loop: an empty list would let every test above pass."""
    verbs = {words[0] for _, words in COMMANDS if words}
    assert {"check", "measure", "explain", "calibrate", "plan", "decide", "verify", "simulate"} <= verbs
    assert len(COMMANDS) > 60


def test_every_verb_is_documented():
    """Each verb that is there stands in the reference and in a page that people wrote."""
    there = set(main.list_commands(click.Context(main)))
    written = "\n".join(p.read_text(encoding="utf-8") for p in PAGES if p.name != "cli.md")
    missing = {verb for verb in there if f"servefit {verb}" not in written and f"`{verb}" not in written}
    assert not missing
    reference = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert not {verb for verb in there if f"### servefit {verb}\n" not in reference}


def test_every_option_has_help():
    """No option and no verb is silent."""
    generate = _generate()
    silent = []
    for path, command, _ in generate.commands():
        if not command.help:
            silent.append(path)
        silent += [
            f"{path} {p.opts[0]}"
            for p in command.params
            if isinstance(p, click.Option) and not p.help and not isinstance(p.type, click.Choice)
        ]
    assert not silent


def _generate():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["reference/cli.md", "reference/json.md", "glossary.md"])
def test_generated_page_is_current(page):
    """What `docs/generate.py` would write is what stands there; else run it."""
    made, there = _generate().PAGES[page](), (DOCS / page).read_text(encoding="utf-8")
    changed = [f"{a} | {b}" for a, b in zip_longest(there.splitlines(), made.splitlines()) if a != b]
    assert not changed, f"run: python docs/generate.py (first difference: {changed[0]})"


def test_glossary_has_every_term():
    """Each term has a heading, and each `see` a target (mkdocs checks the anchors)."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    names = {term.name for term in all_terms()}
    assert all(f"## {name}\n" in text for name in names)
    assert all(see in names for term in all_terms() for see in term.see)


def test_toml_and_json_blocks_parse():
    """Every TOML and JSON block in the docs is what it says."""
    for page in PAGES:
        for kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
            if kind == "toml":
                tomllib.loads(block)
            elif kind == "json":
                json.loads(block)


def test_plans_in_the_docs_name_what_the_catalogue_has():
    """Each device that a plan in the docs names can be found, so that whoever copies it gets a plan."""
    named = 0
    for page in PAGES:
        for kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
            plan = tomllib.loads(block) if kind == "toml" else {}
            for device in plan.get("devices", []) if "workload" in plan else []:
                if device != "this-machine" and not device.endswith(".toml"):
                    assert find_device(device).name, page
                    named += 1
    assert named


def test_python_of_the_guide_runs(folder, tmp_path, monkeypatch, capsys):
    """Each Python block of the guide runs as it stands, in a folder with a run, and its plan gives a decision."""
    shutil.copytree(folder / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    blocks = [b for k, b in FENCE.findall((DOCS / "guides" / "python.md").read_text("utf-8")) if k == "python"]
    for block in blocks:
        exec(compile(block, "python.md", "exec"), {})
        assert capsys.readouterr().out.strip() not in ("", "None"), block
    assert len(blocks) >= 3 and (tmp_path / "decision.md").exists()


def test_settings_in_the_docs_load(tmp_path):
    """The servefit.toml of its reference page loads, and its own schema accepts it."""
    import jsonschema

    from servefit.cli.config import json_schema
    from servefit.settings import load_settings

    text = (DOCS / "reference" / "servefit-toml.md").read_text(encoding="utf-8")
    block = next(block for kind, block in FENCE.findall(text) if kind == "toml")
    path = tmp_path / "servefit.toml"
    path.write_text(block, encoding="utf-8")
    assert load_settings(path=path).targets["chat"].paid
    jsonschema.validate(tomllib.loads(block), json_schema())


def test_nothing_is_fetched_from_elsewhere():
    """Neither the site's settings nor its pages load scripts, fonts or pictures from another host."""
    assert "font: false" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<script|<link|<iframe|!\[[^]]*\]\(https?:", text), page


@pytest.mark.slow
def test_site_builds_strict(tmp_path):
    """The site builds with no warning: every link, anchor and page in the navigation is there."""
    pytest.importorskip("material")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path / "site")],
        check=False, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    outside = set()
    for page in (tmp_path / "site").rglob("*.html"):
        outside |= set(re.findall(r'<(?:script|img)[^>]+src="(https?://[^"]+)"', page.read_text(encoding="utf-8")))
        outside |= set(
            re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(https?://[^"]+)"', page.read_text(encoding="utf-8"))
        )
    assert not outside


def test_verbs_say_their_question():
    """Each verb in the list has a question or a sentence."""
    assert all(said.endswith((".", "?")) for said in VERBS.values())
