"""`servefit calibrate`: from run folders to a file, words and one JSON object; what is wrong is a sentence."""

import dataclasses
import json
import re
import shutil

import pytest
from click.testing import CliRunner

from calibrate.synthetic import probe_like, serve
from servefit.calibrate.calibration import load_calibration
from servefit.calibrate.prior import datasheet
from servefit.cli import calibrate as verb
from servefit.cli.calibrate import command
from servefit.errors import ServefitError
from servefit.records import content_sha256, load_run, save_run
from servefit.traps import suite
from servefit.traps.self_signed import server_context, write_pem
from servefit.traps.server import Script, in_thread


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Five saved runs of a synthetic server."""
    root = tmp_path_factory.mktemp("runs")
    for i, run in enumerate(probe_like()):
        save_run(run, root / f"probe-{i}")
    return sorted(root.iterdir())


def invoke(*args):
    """The command's result; exceptions pass through."""
    return CliRunner().invoke(command, [str(a) for a in args], catch_exceptions=False)


def test_runs_become_a_calibration(folders, tmp_path):
    """The file names its runs by hash, and people get words, a table and the next step."""
    out = tmp_path / "c.json"
    result = invoke(*folders, "--out", out, "--device", "m4-max-36gb")
    assert result.exit_code == 0, result.output
    found = load_calibration(out)
    assert found.runs == {f.name: content_sha256(f) for f in folders}
    assert found.device == "m4-max-36gb"
    for part in (
        "One request alone gets a token every",
        "Batching: continuous",
        "what a step pays for",
        "next: servefit plan",
    ):
        assert part in result.output


def test_json_is_one_object(folders, tmp_path):
    """Stdout holds one object with the coefficients and the words."""
    value = json.loads(invoke(*folders, "--out", tmp_path / "c.json", "--json").output)
    assert {"step", "coefficients", "domain", "residuals", "batching", "words", "file"} <= value.keys()


def test_export_and_import(folders, tmp_path):
    """A colleague's export becomes one's own calibration, with its provenance."""
    invoke(*folders, "--out", tmp_path / "c.json", "--export", tmp_path / "e.json")
    result = invoke("--import", tmp_path / "e.json", "--out", tmp_path / "mine.json")
    assert "imported from e.json" in result.output
    mine, own = (load_calibration(tmp_path / name) for name in ("mine.json", "c.json"))
    assert [(c.name, c.value) for c in mine.coefficients] == [(c.name, c.value) for c in own.coefficients]
    assert "imported from e.json" in mine.step.origin
    assert "probe-0" not in (tmp_path / "e.json").read_text()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "No target and no run"),
        (("http://127.0.0.1:9", "http://127.0.0.1:8"), "is no run, and only one target"),
        (("--import", "nowhere.json"), "does not exist"),
        (("runs/probe-9",), "'runs/probe-9' is neither a run folder nor a URL"),
        (("TYPO",), "'TYPO' is neither a run folder nor a URL"),
    ],
)
def test_wrong_use_is_a_sentence(args, sentence, tmp_path):
    """Nothing named, two targets, a file that is not there, a run's name misspelt."""
    with pytest.raises(ServefitError, match=sentence):
        invoke(*args, "--out", tmp_path / "c.json")


def test_a_misspelt_run_is_told_from_its_neighbours(folders, tmp_path):
    """The nearest run folder is suggested; a folder that holds no run is said to be that."""
    wrong = folders[0].parent / "prob-0"
    with pytest.raises(ServefitError) as caught:
        invoke(folders[1], wrong, "--out", tmp_path / "c.json")
    assert str(folders[0]) in str(caught.value.hint)
    with pytest.raises(ServefitError, match="is a folder without a run"):
        invoke(tmp_path, "--out", tmp_path / "c.json")


def test_runs_beside_a_target_are_fitted_with_its_probes(folders, tmp_path, monkeypatch):
    """The target's probes come first, the given runs after them; folders of the same name are told apart."""
    probed = tmp_path / "probed"
    for folder in folders[:3]:
        shutil.copytree(folder, probed / folder.name)

    def probe(target, _given):
        assert target == "http://127.0.0.1:9"
        at = sorted(probed.iterdir())
        return at, [load_run(f) for f in at], False, True

    monkeypatch.setattr(verb, "_probe", probe)
    out = tmp_path / "c.json"
    result = invoke("http://127.0.0.1:9", *folders[2:], "--out", out)
    assert result.exit_code == 0, result.output
    found = load_calibration(out)
    here, there = "probed/" + folders[2].name, f"{folders[2].parent.name}/{folders[2].name}"
    assert list(found.runs) == [folders[0].name, folders[1].name, here, there, folders[3].name, folders[4].name]
    assert [r.run for r in found.residuals] == list(found.runs)


@pytest.fixture
def lonely(tmp_path):
    """A run of one prompt length: it does not tell what position costs."""
    run = serve([(0.0, 1000, 24)] * 12, users=1, noise=0.01)
    save_run(
        dataclasses.replace(run, header=dataclasses.replace(run.header, model="llama-3.1-8b")), tmp_path / "lonely"
    )
    return tmp_path / "lonely"


def source(file, name="per_prefill_pos_s"):
    """Where the coefficient of that calibration comes from."""
    return next((c.value, c.source, c.origin) for c in load_calibration(file).coefficients if c.name == name)


def test_what_no_run_tells_is_zero_or_a_prior_with_its_source(folders, lonely, tmp_path):
    """Nothing known of the device: zero, assumed. A calibration that is named: its value, published, and where it is from."""
    invoke(*folders, "--out", tmp_path / "theirs.json", "--device", "m4-max-36gb")
    theirs = source(tmp_path / "theirs.json")
    result = invoke(lonely, "--out", tmp_path / "c.json")
    assert source(tmp_path / "c.json") == (0.0, "assumed", "no observation bears on it: taken as zero")
    result = invoke(lonely, "--out", tmp_path / "c.json", "--prior", tmp_path / "theirs.json")
    value, kind, origin = source(tmp_path / "c.json")
    assert (value, kind, "theirs.json (sha256" in origin, "m4-max-36gb" in origin) == (
        theirs[0],
        "published",
        True,
        True,
    )
    assert "was not learned: a prior stands in" in result.output
    assert re.search(r"times its position .* published ", result.output)


def test_a_known_device_gives_its_datasheets_floor(tmp_path):
    """Equal prompts teach no cost of a prompt token; of a model and device in the catalogue the least that it can be is known."""
    run = serve([(0.0, 64, 1)] * 40, users=1, noise=0.01)
    header = dataclasses.replace(run.header, model="llama-3.1-8b")
    more = serve([(0.0, 64, 40)] * 4, users=1, noise=0.01)
    for name, one in (("a", run), ("b", more)):
        save_run(dataclasses.replace(one, header=header), tmp_path / name)
    result = invoke(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c.json", "--device", "rtx-4090")
    kinds = {c.name: (c.value, c.source) for c in load_calibration(tmp_path / "c.json").coefficients}
    floor = datasheet("llama-3.1-8b", "rtx-4090")
    stood_in = [name for name, (value, kind) in kinds.items() if kind == "spec" and value > 0]
    assert stood_in and all(kinds[name][0] == getattr(floor, name) for name in stood_in)
    assert "a prior stands in, the datasheet's floor: " in result.output


def test_a_prior_that_is_none_is_said_before_anything_is_probed(lonely, tmp_path, monkeypatch):
    """A file that is not there costs no five minutes of probing."""
    monkeypatch.setattr(verb, "_probe", lambda *_: pytest.fail("it was probed"))
    with pytest.raises(ServefitError, match="does not exist"):
        invoke("http://127.0.0.1:9", "--prior", tmp_path / "nowhere.json", "--out", tmp_path / "c.json")


class Gateway:
    """What stands before somebody else's engine: it answers after the engine's time, limits the rate, or buffers."""

    def __init__(self, *, every: int = 0, buffers: bool = False) -> None:
        self.every, self.buffers, self.asked = every, buffers, 0

    def __call__(self, path: str, body: dict, _served: int) -> Script:
        """The script of the next answer: 2 ms a token, every n-th request refused."""
        if "chat/completions" not in path:
            return Script(status="404 Not Found", framing="length", writes=((0.0, b"{}"),))
        self.asked += 1
        if self.every and self.asked % self.every == 0:
            headers = ("Content-Type: application/json", "Retry-After: 0", "x-ratelimit-remaining-requests: 0")
            return Script(
                status="429 Too Many Requests",
                headers=headers,
                framing="length",
                writes=((0.0, b'{"error":{"message":"slow down"}}'),),
            )
        tok, isl = int(body.get("max_tokens") or 4), sum(len(m["content"].split()) for m in body["messages"])
        usage = {"prompt_tokens": isl, "completion_tokens": tok, "total_tokens": isl + tok}
        tail = suite.FINISH + suite.event({"choices": [], "usage": usage}) + suite.DONE
        return suite.stream(suite.tokens(tok), tail=tail, gap_s=0.0 if self.buffers else 0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gateway", "code", "said"),
    [
        ({"every": 3}, 3, "were rate-limited: what they waited for is not the engine."),
        ({"buffers": True}, 3, "something on the way buffers"),
    ],
)
def test_a_gateway_is_not_taken_for_an_engine(gateway, code, said, tmp_path, cli):
    """Probed over a real connection: refused with exit 3, one sentence and a hint; the runs lie there, and no calibration."""
    with in_thread() as server:
        server._script_for = Gateway(**gateway)
        asked = ("calibrate", f"{server.url}/v1", "--model", "m", "--dialect", "openai-chat", "--quick", "--quiet")
        got, _, err = cli(*asked, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "c.json"))
    assert (got, said in err, "hint:" in err) == (code, True, True), err
    assert not (tmp_path / "c.json").exists()
    assert list((tmp_path / "runs").glob("*/requests.jsonl"))


@pytest.mark.slow
def test_a_hosted_service_is_learned_for_one_user_of_it(tmp_path, cli, monkeypatch):
    """Behind https others share the capacity: the calibration says that it holds for one user, in words and in the file."""
    monkeypatch.chdir(tmp_path)
    pem = write_pem(tmp_path / "ca.pem")
    with in_thread(tls=server_context(pem)) as server:
        server._script_for = Gateway()
        (tmp_path / "servefit.toml").write_text(
            f'[targets.svc]\nurl = "{server.url}/v1"\nca_file = "{pem}"\nmodel = "m"\ndialect = "openai-chat"\n'
        )
        code, out, err = cli("calibrate", "svc", "--quick", "--force", "--quiet", "--runs", "runs", "--out", "c.json")
    assert code == 0, err
    assert "what was learned holds for one user of it" in out
    found = load_calibration(tmp_path / "c.json")
    assert found.scope == "one user of a service"
    assert "shared_capacity" in {f.code for f in found.findings}
