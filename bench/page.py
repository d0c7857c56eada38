"""How long a move of a slider takes until the whole picture is drawn: median and slowest of real moves in Chromium.

    python -m bench.page [moves]

One process simulates, the browser draws; on an idle machine. Also what one move costs in the worker alone.
"""

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

from servefit.web.app import create_app, listen

SLIDERS = ("Traffic", "Seats", "TTFT at most", "TPOT at most", "Prompt", "Answer", "Goodput at least")


def main(moves: int) -> None:
    """Print the figures as one JSON object."""
    with tempfile.TemporaryDirectory() as folder:
        sock = listen("127.0.0.1", 0)
        host = f"127.0.0.1:{sock.getsockname()[1]}"
        app = create_app(Path(folder), hosts=[host])
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True).start()
        try:
            print(json.dumps(measure(f"http://{host}", app.state.desk.live, moves)))
        finally:
            server.should_exit = True
            app.state.desk.live.close()


def measure(at: str, live: object, moves: int) -> dict[str, object]:
    """Moves of all sliders in turn, three places each, once the compiled engine answers."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.perf_counter()
        page.goto(at + "/plan")
        shown_s = time.perf_counter() - began
        page.wait_for_selector("#picture[data-ms]", timeout=300_000)
        for number in range(2, 600):  # moves until the compiled worker has taken over
            if live.compiled:  # type: ignore[attr-defined]
                break
            move(page, "TTFT at most", -1 if number % 2 else 1)
            page.wait_for_timeout(500)
        for name in SLIDERS:
            move(page, name, 1)
        times: dict[str, list[float]] = {name: [] for name in SLIDERS}
        for number in range(moves):
            name = SLIDERS[number % len(SLIDERS)]
            times[name].append(move(page, name, 3 if number // len(SLIDERS) % 4 < 2 else -3))
        browser.close()
    every = [t for one in times.values() for t in one]
    return {
        "moves": len(every),
        "compiled": live.compiled,  # type: ignore[attr-defined]
        "page_shown_s": round(shown_s, 3),
        "median_ms": round(statistics.median(every)),
        "p95_ms": round(sorted(every)[-(-95 * len(every) // 100) - 1]),
        "max_ms": round(max(every)),
        "median_ms_by_slider": {name: round(statistics.median(one)) for name, one in times.items() if one},
    }


def move(page: object, name: str, steps: int) -> float:
    """Move one slider by so many steps at once; milliseconds until the picture that answers it is drawn."""
    return page.evaluate(  # type: ignore[attr-defined,no-any-return]
        """async ([name, steps]) => {
            const range = document.querySelector(`input[aria-label="${name}, slider"]`), picture = document.getElementById("picture");
            delete picture.dataset.ms;
            const began = performance.now();
            const by = steps * 4, at = Number(range.value);
            range.value = String(at + by < 10 || at + by > 390 ? at - by : at + by);
            range.dispatchEvent(new Event("input", { bubbles: true }));
            while (picture.dataset.ms === undefined && performance.now() - began < 20000) await new Promise(requestAnimationFrame);
            return performance.now() - began;
        }""",
        [name, steps],
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 84)
