"""The same measurement several times, and how far the repeats lie apart: what a single run cannot say of itself."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import monotonic_ns

from servefit.errors import ServefitError
from servefit.measure.load import Options
from servefit.measure.probe import Endpoint
from servefit.measure.run import measure, prepare
from servefit.records import Run
from servefit.workload.drawn import requests_of
from servefit.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """One figure over the repeats, in its own unit."""

    median: float
    least: float
    most: float
    n: int

    @property
    def spread_frac(self) -> float | None:
        """(most - least) / median: 0 where all repeats agree; None where the median is 0.

        >>> Between(median=2.0, least=1.9, most=2.1, n=3).spread_frac
        0.1
        """
        return round((self.most - self.least) / self.median, 6) if self.median else None


def between(values: Sequence[float | None]) -> Between | None:
    """Median, least and most of a figure over the repeats that have it; None where none has.

    >>> between([1.0, None, 3.0, 2.0])
    Between(median=2.0, least=1.0, most=3.0, n=3)
    """
    known = [v for v in values if v is not None]
    if not known:
        return None
    return Between(median=median(known), least=min(known), most=max(known), n=len(known))


def repeat(
    endpoint: Endpoint,
    workload: Workload,
    options: Options,
    count: int,
    *,
    guard: Callable[[Options], AbstractContextManager[Options]] = nullcontext,
) -> Iterator[tuple[Path, Run]]:
    """`count` runs of the same schedule, one after the other, in OUT/1, OUT/2 ...; each as soon as it has ended.

    The endpoint is asked once. Lengths and due times are the same in all; the words of the prompts are not, so that no
    repeat finds the last one's prompts in a cache. `guard` wraps each run, as the spend cap does. Raises ServefitError
    where a repeat is to be resumed, or watched until it knows enough.
    """
    if options.resume or options.until is not None:
        raise ServefitError(
            "--repeat goes together neither with --resume nor with --until.", hint="Each repeat is a whole run."
        )
    requests = requests_of(workload)
    known = None
    for number in range(1, count + 1):
        mine = replace(options, out=options.out / str(number))
        with guard(mine) as limited:
            if known is None and options.probe and not endpoint.expect_failure:
                known = prepare(endpoint, workload, requests, limited, monotonic_ns())
                for row in known.rows if limited.settled is not None else ():
                    limited.settled(row)  # type: ignore[misc]
            if known is not None:
                maker = replace(known.maker, salt=secrets.token_hex(4))
                run = measure(endpoint, workload, limited, requests=requests, known=replace(known, maker=maker))
            else:
                run = measure(endpoint, workload, limited, requests=requests)
        yield mine.out, run
