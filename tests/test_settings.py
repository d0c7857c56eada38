"""servefit.toml: flag over environment over file over default, and one sentence for whatever is wrong in it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servefit import objectives, settings
from servefit.errors import CannotMeasure, ServefitError
from servefit.servers import running, targets

FILE = """
target = "local"
[targets.local]
url = "http://127.0.0.1:9"
[targets.paid]
url = "https://example.invalid/v1"
api_key_env = "EXAMPLE_KEY"
paid = true
[workloads.chat]
isl = 512
osl = { kind = "lognormal", mean = 128, sd = 30.0 }
rate_req_per_s = 2
trace = "t.csv"
[objectives]
ttft = "500 ms"
tpot_s = 0.05
[caps]
usd_per_run = 1.5
"""


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    """A folder of its own, no variables, no engines of others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SERVEFIT_CONFIG", raising=False)


def test_flag_over_environment_over_file_over_default(tmp_path, monkeypatch):
    """Each single value is taken from the strongest place that has it, and says which that was."""
    file = tmp_path / "servefit.toml"
    path = "caps.usd_per_run"

    def now(flags=None):
        found = settings.load_settings(flags)
        return settings.value_of(found, path), found.origins[path]

    assert now() == (None, "default")
    file.write_text(FILE)
    assert now() == (1.5, str(file))
    monkeypatch.setenv("SERVEFIT_CAPS_USD_PER_RUN", "2.5")
    assert now() == (2.5, "environment SERVEFIT_CAPS_USD_PER_RUN")
    assert now({path: 0.0}) == (0.0, "flag")
    assert now({path: None}) == (2.5, "environment SERVEFIT_CAPS_USD_PER_RUN")


def test_file_is_found_above_and_read(tmp_path, monkeypatch):
    """The nearest file above counts; times take units, lengths one number, paths are the file's neighbours."""
    (tmp_path / "servefit.toml").write_text(FILE)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    found = settings.load_settings()
    assert found.target == "local"
    assert (found.objectives.ttft_s, found.objectives.tpot_s) == (0.5, 0.05)
    assert found.workloads["chat"].isl.mean == 512
    assert found.workloads["chat"].osl.kind == "lognormal"
    assert found.workloads["chat"].trace == str(tmp_path / "t.csv")
    assert found.targets["paid"].paid and not found.targets["paid"].key_set
    monkeypatch.setenv("EXAMPLE_KEY", "secret")
    assert found.targets["paid"].key_set and "secret" not in repr(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("targt = 'x'", "'targt' is no setting; did you mean 'target'?"),
        ("[targets.a]\nurll = 'x'", "targets.a: 'urll' is no setting; did you mean 'url'?"),
        ("[targets.a]\nmodel = 'x'", "url"),
        ("[targets.a]\nurl = 5", "targets.a: url is 5; it must be a text"),
        ("[targets.a]\nurl = 'x'\npaid = 'false'", "paid is 'false'; it must be true or false"),
        ("[caps]\nusd_per_runs = 1", "caps: 'usd_per_runs' is no setting; did you mean 'usd_per_run'?"),
        ("[caps]\nrequests = 1.5", "requests is 1.5; it must be a whole number"),
        ("[objectives]\nttft = '5 kg'", "'5 kg' has the unit 'kg', which is no time"),
        ("[workloads.a]\nislands = 5", "workloads.a: 'islands' is no setting"),
        ("usable_memory_frac = 1.7", "usable_memory_frac is 1.7"),
        ("targets = 3", "targets is 3, which is no table"),
        ("[targets.a", "is not TOML"),
    ],
)
def test_faults_are_one_sentence(tmp_path, text, words):
    """A misspelt key names the near one, a wrong value is shown, the place is said."""
    (tmp_path / "servefit.toml").write_text(text)
    with pytest.raises(ServefitError) as caught:
        settings.load_settings()
    assert words in caught.value.message
    assert str(tmp_path / "servefit.toml") in caught.value.message or "unit" in words


def test_environment_that_is_no_setting_is_said(monkeypatch):
    """A misspelt variable is named with the near one, and a value that cannot be read is a fault."""
    monkeypatch.setenv("SERVEFIT_TARGT", "x")
    assert settings.unknown_variables() == [
        "The environment variable 'SERVEFIT_TARGT' is no setting; did you mean 'SERVEFIT_TARGET'?"
    ]
    monkeypatch.setenv("SERVEFIT_OBJECTIVES_TTFT_S", "soon")
    with pytest.raises(ServefitError, match="SERVEFIT_OBJECTIVES_TTFT_S: 'soon' is not a number"):
        settings.load_settings()


def test_objectives_are_those_of_targets():
    """The [objectives] table has exactly the fields of objectives.Targets."""
    assert {f.name for f in dataclasses.fields(settings.Objectives)} == {
        f.name for f in dataclasses.fields(objectives.Targets)
    }


def test_names_are_found_in_order(tmp_path):
    """The file's names come first, then engines that run, usual ports, hosted ones, and URLs as they are."""
    (tmp_path / "servefit.toml").write_text(FILE + "[targets.vllm]\nurl = 'http://127.0.0.1:9999'\n")
    assert targets.find_target("vllm").url == "http://127.0.0.1:9999"
    assert targets.find_target("ollama").url == "http://127.0.0.1:11434"
    assert targets.find_target("fireworks").paid
    assert targets.find_target("127.0.0.1:80").origin == "given"
    with pytest.raises(ServefitError) as caught:
        targets.find_target("olama")
    assert caught.value.hint == "Did you mean 'ollama'?"
    with pytest.raises(CannotMeasure, match="'embedded' does not run here"):
        targets.find_target("embedded")
    running.enter("embedded", "http://127.0.0.1:1", policy="none", seats=1)
    assert targets.find_target("embedded").url == "http://127.0.0.1:1"
    names = [t.name for t in targets.all_targets()]
    assert names[:4] == ["local", "paid", "vllm", "embedded"] and names.count("vllm") == 1


@pytest.mark.slow
def test_config_command(tmp_path):
    """`config show --origin --json` and `config schema` are one object each; the schema accepts the file above."""
    import tomllib

    import jsonschema

    (tmp_path / "servefit.toml").write_text(FILE)

    def run(*words):
        command = [sys.executable, "-m", "servefit", "config", *words]
        env = {**os.environ, "PYTHONPATH": str(Path(settings.__file__).parents[1])}
        return subprocess.run(command, check=False, capture_output=True, text=True, env=env)

    shown = json.loads(run("show", "--origin", "--json").stdout)
    assert shown["settings"]["target"] == {"value": "local", "origin": str(tmp_path / "servefit.toml")}
    schema = json.loads(run("schema").stdout)
    jsonschema.validate(tomllib.loads(FILE), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"targt": "x"}, schema)
    assert "servefit.toml" in run("show", "--origin").stdout
