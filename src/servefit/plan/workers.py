"""The same work on one core, on many, or on a Ray cluster: the results are the same to the byte, in the same order."""

import copyreg
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import MappingProxyType
from typing import Any, TypeVar

from servefit.errors import ServefitError
from servefit.host.ray_cluster import connected

Item = TypeVar("Item")
Result = TypeVar("Result")
Shared = TypeVar("Shared")
OnDone = Callable[[int, int], None]
"""Called with (done, all) after each item."""


def _read_only(table: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(table)


copyreg.pickle(MappingProxyType, lambda table: (_read_only, (dict(table),)))
"""A device's citations are read-only tables, which pickle does not know."""

_shared: Any = None
"""What every item of a worker process needs (the schedules): sent once, not with each item."""


def run_all(
    work: Callable[[Shared, Item], Result],
    items: Sequence[Item],
    shared: Shared,
    *,
    jobs: int = 1,
    ray_address: str | None = None,
    on_done: OnDone | None = None,
) -> list[Result]:
    """`work(shared, item)` for every item, in the order of the items; `work` is a function of a module."""
    if ray_address is not None:
        results: Iterable[Result] = _on_ray(work, items, shared, ray_address)
    elif jobs > 1 and len(items) > 1:
        results = _on_processes(work, items, shared, min(jobs, len(items)))
    else:
        results = (work(shared, item) for item in items)
    out = []
    for result in results:
        out.append(result)
        if on_done:
            on_done(len(out), len(items))
    return out


def _on_processes(
    work: Callable[[Shared, Item], Result], items: Sequence[Item], shared: Shared, jobs: int
) -> Iterable[Result]:
    # fork hands the schedules over without copying them; where it is not safe or not there, they are pickled once
    methods = multiprocessing.get_all_start_methods()
    start = "fork" if "fork" in methods and multiprocessing.get_start_method() != "spawn" else "spawn"
    with ProcessPoolExecutor(
        max_workers=jobs, mp_context=multiprocessing.get_context(start), initializer=_take, initargs=(shared,)
    ) as pool:
        yield from pool.map(_with_shared, [work] * len(items), items)


def _take(shared: Any) -> None:
    global _shared  # noqa: PLW0603 - a worker process has one plan
    _shared = shared


def _with_shared(work: Callable[[Any, Item], Result], item: Item) -> Result:
    return work(_shared, item)


def _on_ray(
    work: Callable[[Shared, Item], Result], items: Sequence[Item], shared: Shared, address: str
) -> Iterable[Result]:
    with connected(address, purpose="plan --ray") as ray:
        held = ray.put(shared)
        remote = ray.remote(work)
        for reference in [remote.remote(held, item) for item in items]:
            try:
                yield ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ServefitError):
                    raise error.cause from None
                raise
