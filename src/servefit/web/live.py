"""The live plan's worker: one process that simulates, in which the newest question of a page wins."""

import asyncio
import multiprocessing
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from servefit.web.picture import Ask, Picture

Result = TypeVar("Result")
MOST_PAGES = 200


class Live:
    """A worker process that is started when it is first asked, and replaced by a compiled one as soon as that is ready."""

    def __init__(self) -> None:
        self._now: ProcessPoolExecutor | None = None
        self._next: ProcessPoolExecutor | None = None
        self._ready: Future[bool] | None = None
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._busy: asyncio.Lock | None = None
        self._start = threading.Lock()

    def start(self) -> None:
        """Start the worker, and getting a compiled one ready beside it."""
        with self._start:
            if self._now is None:
                self._now, self._next = _worker(), _worker()
                from servefit.web.picture import get_ready

                self._ready = self._next.submit(get_ready)

    @property
    def compiled(self) -> bool:
        """Whether the compiled worker answers."""
        return self._now is not None and self._next is None

    async def draw(self, ask: "Ask", *, page: str) -> "Picture | None":
        """The picture for what `page` asked last; None where it has asked something newer meanwhile."""
        from servefit.web.picture import draw

        self.start()
        ticket = self._newest.pop(page, 0) + 1
        self._newest[page] = ticket
        while len(self._newest) > MOST_PAGES:
            self._newest.popitem(last=False)
        self._busy = self._busy or asyncio.Lock()
        async with self._busy:
            if self._newest.get(page) != ticket:
                return None
            return await asyncio.wrap_future(self._submit(draw, ask))

    async def work(self, task: Callable[..., Result], *given: Any) -> Result:
        """Another piece of work, in the worker; pictures wait for it."""
        self.start()
        return await asyncio.wrap_future(self._submit(task, *given))

    def _submit(self, task: Callable[..., Result], *given: Any) -> "Future[Result]":
        if self._ready is not None and self._ready.done() and self._next is not None:
            old, self._now, self._next = self._now, self._next, None
            if old is not None:
                old.shutdown(wait=False)
        assert self._now is not None, "start comes first"
        return self._now.submit(task, *given)

    def close(self) -> None:
        """End the workers."""
        for worker in (self._now, self._next):
            if worker is not None:
                worker.shutdown(wait=False, cancel_futures=True)
                for process in list((worker._processes or {}).values()):  # noqa: SLF001 - there is no public way to end one
                    process.terminate()
        self._now = self._next = None


def _worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=_calm)


def _calm() -> None:
    """In the worker: end with the server, however that ends; collect garbage rarely.

    What the worker remembers are hundreds of thousands of requests that form no cycles.
    """
    import gc
    import os

    gc.set_threshold(200_000, 20, 1000)
    server = multiprocessing.parent_process()
    if server is not None:

        def follow() -> None:
            server.join()
            os._exit(0)

        threading.Thread(target=follow, daemon=True).start()
