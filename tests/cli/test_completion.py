"""Shells complete servefit's verbs, options and choices; NO_COLOR is kept."""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
RUN = [sys.executable, "-c", "import sys; sys.argv[0] = 'servefit'; from servefit.cli.main import run; run()"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script(cli, shell):
    """Each shell's script asks the program itself, by the variable that click reads."""
    code, out, err = cli("completion", shell)
    assert (code, err) == (0, "")
    assert f"_SERVEFIT_COMPLETE={shell}_complete" in out
    assert "%(" not in out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("servefit ver", "verify"), ("servefit plan --goo", "--goodput"), ("servefit simulate --arrivals g", "gamma"),
     ("servefit bill co", "cost"), ("servefit plan --device rtx-40", "rtx-4090"), ("servefit simulate --model llama-3.1-8", "llama-3.1-8b"),
     ("servefit devices h100-s", "h100-sxm")],
)  # fmt: skip
def test_answers(words, wanted):
    """What the script gets back when it asks: verbs, members of a group, options, choices, names of the catalogue."""
    env = {
        **SOURCES,
        "_SERVEFIT_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(RUN, env=env, capture_output=True, text=True, check=False)
    assert f"plain,{wanted}" in done.stdout.splitlines(), done.stderr


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_takes_the_script(cli, tmp_path):
    """A real bash reads the script and registers the completion."""
    script = tmp_path / "servefit.bash"
    script.write_text(cli("completion", "bash")[1], encoding="utf-8")
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source {script} && complete -p servefit"],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert "_servefit_completion" in done.stdout, done.stderr


@pytest.fixture
def on_path(tmp_path):
    """An environment in which `servefit` is a program on the path, as an installed one is."""
    program = tmp_path / "bin" / "servefit"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={SOURCES["PYTHONPATH"]} exec {sys.executable} -m servefit "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{SOURCES['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
def test_fish_completes(cli, tmp_path, on_path):
    """A real fish, given the script, completes a verb and an option."""
    script = tmp_path / "servefit.fish"
    script.write_text(cli("completion", "fish")[1], encoding="utf-8")
    asked = f"source {script}; complete -C 'servefit ver'; complete -C 'servefit plan --goo'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", asked], capture_output=True, text=True, check=False, env=on_path
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["verify", "--goodput"], done.stderr


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
def test_zsh_completes(on_path):
    """A real zsh at a terminal of its own: typing part of a verb and the tab key writes the rest."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], on_path)
    try:
        os.write(terminal, b'autoload -Uz compinit; compinit -u -D; eval "$(servefit completion zsh)"; print RE""ADY\n')
        _read_until(terminal, b"READY\r\n")
        os.write(terminal, b"servefit verif\t")
        _read_until(terminal, b"servefit verify ")
        os.write(terminal, b"--agai\t")
        _read_until(terminal, b"--against ")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def _read_until(terminal: int, wanted: bytes) -> None:
    """Read what the shell writes until it has written that; a shell that never does fails the test after a minute."""
    seen = b""
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, f"{wanted!r} is not in {seen[-400:]!r}"
        seen += os.read(terminal, 65536)


COLOURED = [
    ["devices", "rtx-4090"], ["config", "show"], ["check", "--no-sweep", "--no-servers"], ["models"],
    ["simulate", "--device", "rtx-4090", "--model", "llama-3.1-8b", "--concurrency", "2", "-n", "10"],
    ["explain", "--ttft", "780ms", "--itl", "22ms", "--isl", "6200", "--osl", "300"], ["nothing"],
]  # fmt: skip


@pytest.mark.parametrize("args", COLOURED, ids=lambda a: a[0])
def test_no_color(args, tmp_path):
    """With NO_COLOR nothing coloured comes out, even where colour is forced on rich."""
    env = {**SOURCES, "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color", "HOME": str(tmp_path)}
    done = subprocess.run([*RUN, *args], env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert not [c for c in _colours(done.stdout + done.stderr) if c not in ("0", "1", "2", "3", "4", "22", "39")]


@pytest.mark.parametrize(("value", "wanted"), [("1", False), ("", None), (None, None)])
def test_no_color_reaches_click(cli, monkeypatch, value, wanted):
    """What click itself would colour on a terminal (the tour's headings) is told not to; an empty NO_COLOR is none."""
    from servefit.cli.main import main

    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    seen = []
    monkeypatch.setattr(type(main), "invoke", lambda self, ctx: seen.append(ctx.color))
    assert cli("config", "show")[0] == 0
    assert seen == [wanted]


def _colours(text: str) -> list[str]:
    import re

    return [part for codes in re.findall(r"\x1b\[([\d;]*)m", text) for part in codes.split(";")]
