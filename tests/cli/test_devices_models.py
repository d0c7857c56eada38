"""`devices` and `models`: what people and machines see."""

import json

import pytest
from click.testing import CliRunner

from servefit.cli.devices import command as devices
from servefit.cli.models import command as models
from servefit.errors import ServefitError


def run(command, *args):
    """The command's output; its ServefitError as raised."""
    done = CliRunner().invoke(command, args)
    if isinstance(done.exception, ServefitError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_the_listing_ends_with_what_is_next():
    """A table for people, the doubtful figures marked, a next step."""
    out = run(devices)
    assert "rtx-4090" in out and "1,008 GB/s" in out and out.rstrip().splitlines()[-1].startswith("next:")
    assert "*" in out


def test_one_device_says_where_each_figure_is_from():
    """Source, date and status stand beside each figure; an unverified one says so."""
    out = run(devices, "rtx-5090")
    assert "unverified" in out and "1,792 GB/s" in out and "2026-11-30" in out
    assert "not known, so not used" in run(devices, "m4-max-36gb")


def test_an_ambiguous_name_shows_its_range():
    """M4-max: four devices, 410 to 546 GB/s, each with its figures."""
    out = run(devices, "m4-max")
    assert "4 devices, 410 to 546 GB/s" in out and "m4-max-128gb" in out


def test_json_is_one_object():
    """Machines get exactly one object with every figure's provenance."""
    found = json.loads(run(devices, "h100-sxm", "--json"))["devices"]
    assert [d["name"] for d in found] == ["h100-sxm"]
    figure = found[0]["figures"]["bandwidth_bytes_per_s"]
    assert figure["value"] == 3.35e12 and figure["source"] and figure["status"] == "seen"
    assert {p["provisioning"] for p in found[0]["usd_per_hour"]} >= {"on-demand", "spot"}
    assert len(json.loads(run(devices, "--json"))["devices"]) >= 40
    assert {d["kind"] for d in json.loads(run(devices, "--kind", "cpu", "--json"))["devices"]} == {"cpu"}


def test_models_listing_and_one():
    """The catalogue, and one model with its sizes and source."""
    assert "llama-3.1-8b" in run(models) and len(json.loads(run(models, "--json"))["models"]) >= 40
    out = run(models, "llama-3.1-8b")
    assert "131,072 bytes a token" in out and "8,030,261,248" in out and "next:" in out


def test_a_model_on_a_device():
    """Room, seats and ceiling from the datasheet alone, said to be a lower bound."""
    on = json.loads(run(models, "llama-3.1-8b", "--on", "rtx-4090", "--context", "768", "--json"))["on"]
    assert on["seats_that_fit"] == 53 and on["lower_bound"] is True
    assert on["usable_bytes"] >= on["weight_bytes"] + on["kv_pool_bytes"]
    assert "lower bound" in run(models, "qwen3.5-27b", "--on", "h100-sxm")
    assert "unverified" in run(models, "llama-3.1-8b", "--on", "rtx-5090")


def test_a_file_works_like_a_name(tmp_path):
    """A config.json in a folder is a model."""
    config = {
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "596,049,920" in run(models, str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("command", "args", "said"),
    [(devices, ["rtx-4909"], "no device"), (models, ["lama-3.1-8b"], "no model"), (models, ["--on", "h100-sxm"], "needs a model"),
     (models, ["llama-3.1-405b", "--on", "rtx-4090"], "does not fit"), (models, ["llama-3.1-8b", "--on", "m4-max"], "more than one"),
     (models, ["llama-3.1-8b", "--on", "l4", "--precision", "q3"], "no precision"), (models, ["/no/such/config.json"], "does not exist"),
     (devices, ["/no/such.toml"], "does not exist")],
)  # fmt: skip
def test_what_people_can_fix_is_one_sentence(command, args, said):
    """Unknown, ambiguous, missing: a sentence and a hint."""
    with pytest.raises(ServefitError, match=said) as caught:
        run(command, *args)
    assert caught.value.hint
