"""What tests share: a real headless Chromium, watched for errors and for requests that leave the machine."""

import http.server
import os
import re
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

# CI draws the same examples each time, so that it fails for a change and not for luck; at a desk they are new each time.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
]  # fmt: skip
POLICY = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:"


def pytest_report_header() -> list[str]:
    """How large the house is, printed with every run: rooms by lines, and what the base install brings."""
    root = Path(__file__).parent.parent
    lines = {p: p.read_text(encoding="utf-8").count("\n") for p in (root / "src" / "servefit").rglob("*.py")}
    rooms = Counter()
    for path, n in lines.items():
        rooms[path.relative_to(root / "src" / "servefit").parts[0].removesuffix(".py")] += n
    longest = max(lines, key=lines.__getitem__)
    base = re.findall(
        r"^([a-z][\w-]*)==", (root / "requirements" / "base.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    return [
        f"servefit: {len(lines)} modules, {sum(lines.values()):,} lines, the longest {longest.name} with {lines[longest]}; "
        + ", ".join(f"{room} {n:,}" for room, n in rooms.most_common()),
        f"base install: {len(base)} packages ({', '.join(base)})",
    ]


@pytest.fixture(scope="session")
def browser():
    """One Chromium for the session; skipped, with the reason, where there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def browser_page(browser, tmp_path):
    """A page and a function that shows HTML on it, served over loopback under a content security policy without eval.

    The page's `errors` holds every console error, page error and request that was not for loopback.
    """
    (tmp_path / "www").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path / "www"))

        def end_headers(self):
            self.send_header("Content-Security-Policy", POLICY)
            super().end_headers()

        def log_message(self, *args):
            """Nothing on the terminal."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.errors = watch(page)

    def show(html: str) -> None:
        Path(tmp_path / "www" / "index.html").write_text(html, encoding="utf-8")
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/index.html")

    yield page, show
    page.close()
    server.shutdown()
    server.server_close()


def watch(page) -> list[str]:
    """A list that grows by every console error, page error and request to another machine."""
    errors: list[str] = []
    page.on(
        "console",
        lambda m: (
            errors.append(m.text) if m.type == "error" and "favicon" not in (m.location or {}).get("url", "") else None
        ),
    )
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on(
        "request",
        lambda r: (
            None
            if r.url.startswith(("http://127.0.0.1", "data:", "blob:", "file:"))
            else errors.append(f"request to {r.url}")
        ),
    )
    return errors


@pytest.fixture
def cli(capsys):
    """Runs the command line in this process, as `servefit ARGS` would: (exit code, stdout, stderr)."""
    from servefit.cli.main import run

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            run([str(a) for a in args])
        out = capsys.readouterr()
        return done.value.code or 0, out.out, out.err

    return call
