"""What cannot be known is refused with a sentence; what is shared, drifting or noisy is said."""

import dataclasses
import random

import pytest

from calibrate.synthetic import probe_like, serve
from servefit.calibrate.calibration import save_calibration
from servefit.calibrate.files import anonymous, imported
from servefit.calibrate.learn import learn
from servefit.calibrate.recognise import engine_config
from servefit.calibrate.words import rows, words
from servefit.errors import CannotMeasure


def changed(run, **fields):
    """The run with every row's fields replaced by what the functions in `fields` make of the row."""
    moved = tuple(dataclasses.replace(row, **{k: f(row) for k, f in fields.items()}) for row in run.rows)
    return dataclasses.replace(run, rows=moved)


def test_a_quiet_server_is_learned_whole():
    """Policy, seats and step time in one go, valid, with the simulator's settings ready to use."""
    found = learn(probe_like(policy="chunked", seats=8))
    assert found.verdict == "valid"
    assert found.batching.policy == "chunked"
    config = engine_config(found.batching, seats=4)
    assert (config.policy, config.seats, config.padded) == ("chunked", 4, False)
    assert config.budget_tok == found.batching.budget_tok


def test_a_static_server_that_waits_with_a_limit_is_dynamic_to_the_simulator():
    """The server says static and 2 s: the simulator is told dynamic with that limit, not padded."""
    run = serve([(0.0, 64, 30)] * 8, users=2, policy="static", seats=2)
    header = dataclasses.replace(run.header, engine={"policy": "static", "seats": 2, "timeout_s": 2.0})
    config = engine_config(learn([dataclasses.replace(run, header=header)]).batching)
    assert (config.policy, config.timeout_s, config.padded) == ("dynamic", 2.0, False)


def test_a_proxy_that_buffers_is_refused():
    """Tokens that arrive in bunches of eight are no steps."""

    def bunched(row):
        return tuple(row.chunk_s[min(i // 8 * 8 + 7, len(row.chunk_s) - 1)] for i in range(len(row.chunk_s)))

    run = changed(serve([(0.0, 64, 40)] * 6, users=1), chunk_s=bunched)
    with pytest.raises(CannotMeasure, match="arrive at once with the one before"):
        learn([run])


def test_a_proxy_that_passes_on_whole_pieces_is_refused():
    """Eight tokens in each read, as the client counts them, are a buffer; three, as speculative decoding gives, are not."""

    def pieces(of):
        run = serve([(0.0, 64, 49)] * 6, users=1)
        sizes = (1, *(of for _ in range(48 // of)))
        return changed(run, chunk_s=lambda row: row.chunk_s[::of], chunk_tok=lambda _row: sizes)

    with pytest.raises(CannotMeasure, match="Tokens arrive 8"):
        learn([pieces(8)])
    assert "buffered" not in {f.code for f in learn([pieces(3)], force=True).findings}


def test_rate_limits_and_failures_are_refused():
    """One in ten rate-limited is enough; failures of another kind may be up to three in ten."""
    run = serve([(0.0, 64, 40)] * 10, users=1)
    for status, count, sentence in (("rate_limited", 1, "were rate-limited"), ("reset", 4, "4 of 10 requests failed")):
        spoilt = tuple(
            dataclasses.replace(r, status=status, chunk_s=()) if i < count else r for i, r in enumerate(run.rows)
        )
        with pytest.raises(CannotMeasure, match=sentence):
            learn([dataclasses.replace(run, rows=spoilt)])


def test_a_machine_far_too_busy_is_refused_and_force_marks_it():
    """Steps that take anything from one to four times as long teach nothing."""
    rng = random.Random(1)

    def shaken(row):
        at, out = row.chunk_s[0], []
        for a, b in zip((row.chunk_s[0], *row.chunk_s), row.chunk_s, strict=False):
            at += (b - a) * rng.choice((0.3, 1.0, 3.0, 6.0))
            out.append(at)
        return tuple(out)

    run = serve([(0.0, 64, 60)], users=1)
    runs = [changed(run, chunk_s=shaken) for _ in range(4)]
    with pytest.raises(CannotMeasure, match="busy with something else"):
        learn(runs)
    assert learn(runs, force=True).verdict == "invalid"


def test_drift_and_shared_capacity_are_said():
    """The same requests 50% slower at the end: suspect. A hosted service: one user of it."""
    run = serve([(0.0, 64, 40)] * 8, users=1)
    slow = [
        dataclasses.replace(r, chunk_s=tuple(r.chunk_s[0] + 1.5 * (t - r.chunk_s[0]) for t in r.chunk_s))
        for r in run.rows[4:]
    ]
    header = dataclasses.replace(run.header, load={"concurrency": 1})
    moved = tuple(
        dataclasses.replace(
            r, due_s=r.due_s + 10 * i, sent_s=(r.sent_s or 0) + 10 * i, chunk_s=tuple(t + 10 * i for t in r.chunk_s)
        )
        for i, r in enumerate((*run.rows[:4], *slow))
    )
    found = learn([dataclasses.replace(run, header=header, rows=moved)], hosted=True)
    assert {"drift", "shared_capacity"} <= {f.code for f in found.findings}
    assert (found.verdict, found.scope) == ("suspect", "one user of a service")


def test_runs_of_two_models_are_refused():
    """A calibration is of one model on one engine."""
    a = serve([(0.0, 64, 40)] * 4, users=1)
    b = dataclasses.replace(a, header=dataclasses.replace(a.header, model="other"))
    with pytest.raises(CannotMeasure, match="of 2 models: other, toy"):
        learn([a, b])


def test_export_names_nobody_and_import_says_from_where(tmp_path):
    """Run names leave, hashes and figures stay; the imported one carries its file and hash."""
    found = learn(probe_like(), names=[f"/home/ann/secret-{i}" for i in range(5)])
    path = tmp_path / "shared.json"
    save_calibration(anonymous(found), path)
    assert "ann" not in path.read_text()
    back = imported(path)
    assert dataclasses.replace(back.step, origin="") == dataclasses.replace(found.step, origin="")
    assert back.step.origin == f"{found.step.origin}, imported from {back.imported_from}"
    assert set(back.runs.values()) == set(found.runs.values())
    assert back.imported_from.startswith("shared.json (sha256 ")


def test_words_say_what_was_learned():
    """Lines for people: the pace alone and together, the policy, the domain; a row a coefficient."""
    found = learn(probe_like())
    text = "\n".join(words(found))
    for part in (
        "One request alone gets a token every",
        "8 together",
        "Batching: continuous",
        "beyond that it is a guess",
    ):
        assert part in text
    assert len(rows(found)) == 10
