"""Every `--json` output is what its published schema says."""

import json
import shlex
from importlib.resources import files

import click
import jsonschema
import pytest

from cli.outputs import COMMANDS, make_folder
from servefit.cli.config import json_schema
from servefit.cli.main import main
from servefit.traps.server import in_thread

SCHEMAS = files("servefit") / "schemas"
NAMES = sorted(entry.name.removesuffix(".json") for entry in SCHEMAS.iterdir())

ELSEWHERE = {
    "measure --selftest": "told by its own tests: it takes a minute",
    "engine-start": "needs an engine",
    "bill-stop": "bill live --stop, told by its own tests",
}


def _schema(name: str) -> dict:
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the commands name, and a server with known answers."""
    home = tmp_path_factory.mktemp("outputs")
    make_folder(home)
    with in_thread(speed=8) as server:
        yield home, server.url


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_one(name):
    """Each file is a JSON Schema of the named draft, with a title; its top level admits nothing unsaid."""
    schema = _schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"].startswith("servefit ")
    assert schema["additionalProperties"] is False
    assert schema["properties"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_outputs_match(name, folder, cli, monkeypatch):
    """What each command really prints is one JSON object that its schema accepts."""
    home, url = folder
    monkeypatch.chdir(home)
    monkeypatch.setenv("SERVEFIT_LEDGER", str(home / "spend.jsonl"))
    for key in ("FIREWORKS_API_KEY", "TOGETHER_API_KEY", "HF_TOKEN", "RUNPOD_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    for line in COMMANDS[name]:
        code, out, err = cli(*shlex.split(line.format(url=url)), "--json")
        assert code in (0, 3, 5), f"{line}: {code}\n{err}"
        assert out.count("\n") == 1, line
        jsonschema.validate(json.loads(out), _schema(name))


def test_config_without_a_file_matches(cli, monkeypatch, tmp_path):
    """Where no servefit.toml is found the file is null, and the schema says that it may be."""
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("config", "show", "--json")
    assert code == 0, err
    assert json.loads(out)["file"] is None
    jsonschema.validate(json.loads(out), _schema("config-show"))


def test_plan_file_has_the_schema_of_its_output():
    """plan.json is what `plan --json` prints: the golden one is accepted too."""
    from cli.outputs import GOLDEN

    jsonschema.validate(json.loads(GOLDEN.read_text(encoding="utf-8")), _schema("plan"))


def test_a_wrong_output_is_refused():
    """The schemas do not accept everything."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"shell": "bash", "script": 1}, _schema("completion"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"shell": "bash", "script": "", "more": 1}, _schema("completion"))


def test_every_json_option_has_a_schema():
    """Each command with --json has a schema, one of its group, or a stated reason."""
    missing = []
    for path, command in _walk(main, ()):
        name = "-".join(path)
        if any("--json" in p.opts for p in command.params) and not {name, path[0]} & {*NAMES, *ELSEWHERE}:
            missing.append(name)
    assert not missing, f"add src/servefit/schemas/NAME.json and a line to tests/cli/outputs.py for {missing}"


def _walk(command, path):
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _walk(command.get_command(context, name), (*path, name))
    if path:
        yield path, command


def test_config_schema(cli):
    """`config schema` prints the schema of servefit.toml, `config schema NAME` that of an output, and names what there is."""
    assert json.loads(cli("config", "schema")[1]) == json_schema()
    assert json.loads(cli("config", "schema", "plan")[1]) == _schema("plan")
    code, out, err = cli("config", "schema", "nothing")
    assert (code, out) == (2, "")
    assert "plan" in err
