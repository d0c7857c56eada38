"""servefit decide and servefit verify, as they are called."""

import json
import zipfile
from importlib.resources import files

import jsonschema
import pytest

from calibrate.synthetic import probe_like
from decide.case import make_plan, make_run
from servefit.calibrate.calibration import to_json
from servefit.calibrate.fit import fit_runs
from servefit.cli.main import run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a plan, a calibration and two measured runs, as the working folder."""
    monkeypatch.chdir(tmp_path)
    make_plan(tmp_path)
    make_run(tmp_path / "good", ttft_s=0.2)
    make_run(tmp_path / "bad", ttft_s=0.6)
    return tmp_path


def load_schema(name: str) -> dict:
    """A published JSON Schema."""
    return json.loads((files("servefit") / "schemas" / f"{name}.json").read_text())


@pytest.fixture
def call(capsys):
    """Calls servefit and gives (exit code, stdout, stderr)."""

    def called(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            run(list(args))
        out, err = capsys.readouterr()
        return int(done.value.code or 0), out, err

    return called


OWN = ("--assume", "Most users read on a phone.")


def test_decide_and_verify_round_trip(here, call):
    """A plan becomes a decision, a report and a bundle; both verify; the next command is said."""
    code, out, _ = call("decide", "plan.json", *OWN, "--html", "r.html", "--bundle", "b.zip", "--run", "good")
    assert code == 0
    assert out.rstrip().endswith("next: servefit verify decision.md")
    assert (here / "r.html").read_text().startswith("<!doctype html>")
    assert "runs/good/requests.jsonl" in zipfile.ZipFile("b.zip").namelist()
    for path in ("decision.md", "b.zip", "."):
        code, out, _ = call("verify", path)
        assert (code, "it holds" in out) == (0, True), path


def test_json_is_one_object_of_the_published_schema(here, call):
    """Both commands, with and without findings and a run held against."""
    code, out, _ = call("decide", "plan.json", "--json")
    said = json.loads(out)
    jsonschema.validate(said, load_schema("decide"))
    assert (code, said["configuration"]["seats"], said["verdict"]) == (0, 16, "pass")
    assert [f["code"] for f in said["findings"]] == ["MISSING"]
    code, out, _ = call("verify", "decision.md", "--against", "bad", "--json")
    said = json.loads(out)
    jsonschema.validate(said, load_schema("verify"))
    assert (code, said["holds"], said["files"][0]["against"]["result"]) == (5, True, "overturned")


def test_stale_numbers_end_with_4_and_fix_mends_them(here, call):
    """Line, name, written and recomputed; the annotation format; --fix."""
    call("decide", "plan.json", *OWN)
    path = here / "decision.md"
    good = path.read_text()
    path.write_text(good.replace("210 ms<!--", "211 ms<!--"))
    code, out, _ = call("verify", "decision.md")
    line = next(n for n, text in enumerate(path.read_text().split("\n"), 1) if "211 ms<!--" in text)
    assert code == 4
    assert f"decision.md:{line}: STALE ttft.value: 211 ms is written, it is 210 ms." in out
    code, out, _ = call("verify", "decision.md", "--format", "github")
    assert code == 4
    assert out.startswith(
        f"::error file=decision.md,line={line},title=STALE ttft.value::211 ms is written, it is 210 ms."
    )
    assert call("verify", "decision.md", "--fix")[0] == 0
    assert path.read_text() == good


def test_a_run_confirms_then_overturns(here, call):
    """0 with the status kept, 5 with the status flipped; the run is recorded once."""
    call("decide", "plan.json", *OWN, "--status", "accepted", "--decider", "Ada")
    code, out, _ = call("verify", "decision.md", "--against", "good")
    assert (code, "confirmed by good" in out, "ttft.p99" in out) == (0, True, True)
    call("verify", "decision.md", "--against", "good")
    text = (here / "decision.md").read_text()
    assert (text.count("result: confirmed"), text.count("status: accepted")) == (1, 1)
    code, out, _ = call("verify", "decision.md", "--against", "bad")
    assert (code, "OVERTURNED by bad" in out) == (5, True)
    assert (here / "decision.md").read_text().startswith("---\nstatus: overturned\n")
    assert call("verify", "decision.md")[0] == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("decide", "nope.json"), 2, "nope.json does not exist"),
        (("decide", "calibration.json"), 2, "is not a plan"),
        (("decide", "plan.json", "--candidate", "a", "--candidate", "b"), 2, "exactly one configuration, not 2"),
        (("decide", "plan.json", "--candidate", "a100-80gb"), 2, "names 4 configurations"),
        (("decide", "plan.json", "--candidate", "seats64"), 5, "misses a target"),
        (("decide", "plan.json", "--date", "soon"), 2, "'soon' is no date"),
        (("decide", "plan.json", "--run", "nope"), 2, "nope/run.json does not exist"),
        (("decide", "plan.json", "--status", "done"), 2, "'done'"),
        (("verify", "nope.md"), 2, "nope.md does not exist"),
        (("verify", "calibration.json"), 2, "no front matter"),
        (("verify",), 2, "Missing argument"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(here, call, args, code, said):
    """The value is in the sentence, a hint follows, and no file appears."""
    before = sorted(p.name for p in here.iterdir())
    got, out, err = call(*args)
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") <= 2
    assert sorted(p.name for p in here.iterdir()) == before


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (
            {"engine": {"policy": "static", "seats": 16}},
            "ran with policy static, the decision is chunked: it says nothing",
        ),
        ({"engine": {"policy": "chunked", "seats": 8}}, "ran with seats 8, the decision is 16: it says nothing"),
        ({"kind": "simulated"}, "is a simulated run"),
        ({"verdict": "invalid"}, "is not valid"),
    ],
)
def test_a_run_of_something_else_is_not_set_beside_it(here, call, header, said):
    """What `verify --against` refuses, `decide --run` refuses with the same sentence, and writes nothing."""
    make_run(here / "other", **header)
    code, out, err = call("decide", "plan.json", "--run", "other")
    assert (code, out, said in err) == (3, "", True), err
    assert not (here / "decision.md").exists()


def test_a_run_that_says_little_is_set_beside_it_with_notes(here, call):
    """Lighter, suspect, of another workload: said on the terminal and under the table, in a decision that verifies."""
    make_run(here / "light", every_s=1.0, workload_sha256="other", verdict="suspect")
    code, out, _ = call("decide", "plan.json", *OWN, "--run", "light")
    text = (here / "decision.md").read_text().partition("### Predicted and measured")[2].partition("## Assumptions")[0]
    assert code == 0
    for said in ("a lighter load confirms nothing", "suspect by its own findings", "workload is not the plan's"):
        assert said in text and f"note: run light: {said}"[:16] in out and said in out
    assert call("verify", "decision.md")[0] == 0


def test_an_edited_decision_is_not_overwritten(here, call):
    """A second decide is refused without --force; a report and a bundle of the edited file can be made."""
    call("decide", "plan.json", *OWN)
    path = here / "decision.md"
    path.write_text(path.read_text().replace("It meets every target", "We are glad that it meets every target"))
    code, _, err = call("decide", "plan.json")
    assert (code, "is there already" in err) == (2, True)
    code, _, _ = call("decide", "decision.md", "--html", "r.html", "--bundle", "bundle")
    assert code == 0
    assert "We are glad" in (here / "r.html").read_text()
    assert call("verify", "bundle")[0] == 0
    assert call("decide", "plan.json", "--force")[0] == 0
    assert "We are glad" not in path.read_text()


def test_a_reason_lets_a_failing_configuration_through(here, call):
    """--despite writes it, with the reason in the file; verify says what fails and still ends with 0."""
    code, _, _ = call(
        "decide", "plan.json", *OWN, "--candidate", "seats64", "--despite", "The next device comes in May."
    )
    assert code == 0
    code, out, _ = call("verify", "decision.md")
    assert code == 0
    assert "FAILS (note) tpot.verdict" in out
    assert "The next device comes in May." in (here / "decision.md").read_text()


def test_several_files_are_one_answer(here, call):
    """A hook names every changed decision; one that does not hold is enough for 4."""
    call("decide", "plan.json", *OWN, "--out", "a.md")
    call("decide", "plan.json", *OWN, "--out", "b.md")
    (here / "b.md").write_text((here / "b.md").read_text().replace("210 ms", "209 ms"))
    code, out, _ = call("verify", "a.md", "b.md")
    assert code == 4
    assert "a.md (proposed)" in out
    assert "b.md (proposed)" in out


def test_a_zip_is_only_read(here, call):
    """--fix and --against do not write into a zip."""
    call("decide", "plan.json", *OWN, "--bundle", "b.zip")
    for extra in (("--fix",), ("--against", "good")):
        code, _, err = call("verify", "b.zip", *extra)
        assert (code, "only read" in err) == (2, True)


PLAN_AGAIN = (
    "plan", "--model", "llama-3.1-8b", "--device", "rtx-4090", "--rate", "2", "-n", "20", "--isl", "64", "--osl", "8",
    "--seeds", "1", "--jobs", "1", "--seats", "4", "--policy", "chunked", "--quiet",
)  # fmt: skip


def test_a_plan_that_a_decision_rests_on_is_not_written_over(here, call):
    """Refused before anything is simulated, named, and let through by --force; then verify says what happened and what to do."""
    before = (here / "plan.json").read_bytes()
    assert call("decide", "plan.json", *OWN)[0] == 0
    code, out, err = call(*PLAN_AGAIN)
    assert (code, out) == (2, "")
    assert "decision.md rests on plan.json" in err
    assert "--out" in err
    assert "--force" in err
    assert (here / "plan.json").read_bytes() == before
    assert call(*PLAN_AGAIN, "--json")[0] in (0, 5), "nothing is written, so nothing is refused"
    assert call(*PLAN_AGAIN, "--out", "other.json")[0] in (0, 5), "no decision rests on that one"
    assert call(*PLAN_AGAIN, "--out", "other.json")[0] in (0, 5)
    assert call(*PLAN_AGAIN, "--force")[0] in (0, 5)
    assert (here / "plan.json").read_bytes() != before
    code, out, _ = call("verify", "decision.md")
    assert code == 4
    assert "A later `servefit plan` may have written over it" in out
    assert "servefit decide plan.json --out decision.md --force" in out.splitlines()[-1]
    assert call(*PLAN_AGAIN)[0] in (0, 5), "the decision rests on it no more"


@pytest.mark.parametrize("kept", ["calibration.json", "plan.json"])
def test_no_verb_writes_over_what_a_decision_rests_on(here, call, kept):
    """Neither a calibration, an export of one nor a table: refused in one sentence, and the decision still verifies."""
    exported = here / "colleague.json"
    exported.write_text(json.dumps(to_json(fit_runs(probe_like()))), encoding="utf-8")
    assert call("decide", "plan.json", *OWN)[0] == 0
    for words in (
        ("calibrate", "--import", "colleague.json", "--out", kept),
        ("calibrate", "--import", "colleague.json", "--out", "other.json", "--export", kept),
        ("export", "good", "--csv", "--out", kept),
    ):
        code, out, err = call(*words)
        assert (code, out) == (2, ""), words
        assert f"decision.md rests on {kept}" in err, words
        assert (words[-2] if words[0] == "calibrate" else "--out") in err, words
    assert call("verify", "decision.md")[0] == 0
    assert call("calibrate", "--import", "colleague.json", "--out", "other.json")[0] == 0
    assert call("calibrate", "--import", "colleague.json", "--out", kept, "--force")[0] == 0
    assert call("verify", "decision.md")[0] == 4


def test_to_stop_what_does_not_run_is_no_fault(call, monkeypatch, tmp_path):
    """With nothing running there is nothing to stop; an engine that is named and does not run is a fault."""
    monkeypatch.setattr("servefit.servers.running.entries", list)
    code, out, err = call("engine", "stop")
    assert (code, err) == (0, "")
    assert "nothing to stop" in out
    code, _, err = call("engine", "stop", "embedded")
    assert code == 3
    assert "No engine 'embedded' runs here" in err


def test_a_plan_at_p95_speaks_of_p95(tmp_path, monkeypatch, call):
    """Asked for p95: neither the screen nor the decision has a p99 in it, and its trade-offs verify at p95."""
    monkeypatch.chdir(tmp_path)
    asked = (
        *PLAN_AGAIN[:-5],
        "--seats",
        "4",
        "--seats",
        "8",
        "--ttft",
        "2s",
        "--tpot",
        "40ms",
        "--p",
        "95",
        "--policy",
        "chunked",
        "--quiet",
    )
    code, out, _ = call(*asked, "--all")
    assert (code, "p95 TTFT" in out, "p99" in out) == (0, True, False)
    assert call("decide", "plan.json", *OWN)[0] == 0
    text = (tmp_path / "decision.md").read_text(encoding="utf-8")
    assert "p99" not in text
    assert "delta.ttft.p95-->" in text
    assert "| p95 TTFT | p95 TPOT | why not |" in text
    assert call("verify", "decision.md")[0] == 0


OVER_ITS_OWN = [
    ("decide", "plan.json", "--out", "plan.json", "--force"),
    ("decide", "plan.json", "--out", "new.md", "--html", "plan.json"),
    ("decide", "plan.json", "--out", "new.md", "--html", "new.md"),
    ("decide", "plan.json", "--html", "./decision.md", "--force"),
    ("decide", "plan.json", "--out", "good/run.json", "--run", "good", "--force"),
    ("decide", ".", "--out", "plan.json", "--force"),
    ("decide", "plan.json", "--out", "new.md", "--bundle", "plan.json"),
    ("decide", "there.md", "--html", "there.md"),
    ("decide", "there.md", "--html", "plan.json"),
    ("export", "good", "--csv", "--out", "good/run.json"),
    ("export", "good", "--markdown", "--out", "good/../good/requests.jsonl"),
    ("plan", "question.toml", "--out", "question.toml", "--force"),
    ("calibrate", "good", "--out", "good/requests.jsonl", "--force"),
    ("plan", "question.toml", "--out", "there.md", "--force"),
    ("plan", "question.toml", "--out", "good/requests.jsonl", "--force"),
    ("export", "bad", "--csv", "--out", "there.md"),
    ("export", "bad", "--csv", "--out", "good/run.json"),
    ("decide", "plan.json", "--out", "new.md", "--html", "question.toml"),
    ("calibrate", "good", "--out", "question.toml", "--force"),
    ("calibrate", "--import", "calibration.json", "--out", "calibration.json", "--force"),
    (
        "calibrate",
        "good",
        "--out",
        "new.json",
        "--prior",
        "calibration.json",
        "--export",
        "calibration.json",
        "--force",
    ),
]


@pytest.mark.parametrize("words", OVER_ITS_OWN, ids=" ".join)
def test_nothing_is_written_over_what_the_command_reads(here, call, words):
    """Each is refused in one sentence, with --force too, and every file is as it was."""
    (here / "question.toml").write_text(
        'models = ["llama-3.1-8b"]\ndevices = ["a100-80gb"]\n[workload]\nconcurrency = 2\n'
    )
    assert call("decide", "plan.json", "--out", "there.md")[0] == 0
    before = {p: p.read_bytes() for p in here.rglob("*") if p.is_file()}
    code, out, err = call(*words)
    assert ((code, out) == (2, "") and "would be written over" in err) or "would write over" in err, err
    assert {p: p.read_bytes() for p in here.rglob("*") if p.is_file()} == before
