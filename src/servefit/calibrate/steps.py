"""What the engine did, step by step, rebuilt from token arrivals at the client.

A step hands every running request its next token, so arrivals of different requests come in clusters: one cluster, one
step. Between two clusters at which no prompt is half read, everything that happened is known: how many steps, how many
requests decoded with how much context, which prompts were read. That stretch is one observation, linear in the
coefficients of `StepTime`, whatever the batching policy:

    time = steps*const + seqs*per_seq + kv*per_kv + prompt*per_prefill + positions*per_pos [+ front end, when idle before]

Left out: speculative decoding (several tokens of one request per step count as as many steps), and steps that hand out
nothing while several prompts are read, where the budget is not known.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from servefit.calibrate.calibration import Batching
from servefit.records import RequestRecord, Run
from servefit.stats import percentile

NOTHING_KNOWN = Batching()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One stretch of known work: its time in seconds and what was done in it, summed over its steps."""

    time_s: float
    steps: int
    seqs: int
    kv_tok: int
    prefill_tok: int = 0
    prefill_pos: int = 0
    front_end: int = 0
    """1 where the stretch begins with a request reaching an idle server."""
    front_end_tok: int = 0
    busy: int = 0
    """Number of the busy period: stretches of one share their moment."""

    @property
    def row(self) -> tuple[float, ...]:
        """In the order of `calibration.FITTED`."""
        return (
            self.steps,
            self.seqs,
            self.kv_tok,
            self.prefill_tok,
            self.prefill_pos,
            self.front_end,
            self.front_end_tok,
        )


@dataclass(slots=True)
class Cluster:
    """Token arrivals of one step."""

    at_s: float
    firsts: list[int] = field(default_factory=list)
    """Streams that got their first token."""
    tokens: dict[int, int] = field(default_factory=dict)
    """Stream -> tokens after its first."""
    ended: int = 0
    """Streams that got their last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One request as seen by the engine: when it came, when its tokens left."""

    sent_s: float
    first_s: float
    last_s: float
    isl: int
    cached_tok: int
    row: RequestRecord


def streams_of(run: Run) -> list[Stream]:
    """Every request of the run that got at least one token, in the order of sending; warm-ups are work too."""
    found = []
    for row in run.rows:
        if row.chunk_s and row.phase != "cold":
            sent = row.sent_s if row.sent_s is not None else row.due_s
            isl = row.isl if row.isl is not None else row.isl_asked or 0
            cached = min(row.cached_tok or 0, max(isl - 1, 0))
            found.append(
                Stream(sent_s=sent, first_s=row.chunk_s[0], last_s=row.chunk_s[-1], isl=isl, cached_tok=cached, row=row)
            )
    return sorted(found, key=lambda s: s.sent_s)


def clusters_of(streams: Sequence[Stream]) -> list[Cluster]:
    """The steps that handed out tokens: arrivals nearer than a third of the usual gap, and never two of one request."""
    gaps = [gap for s in streams for gap in s.row.itl_s if gap > 0]
    near = 0.3 * (percentile(gaps, 10) or 0.0)
    events: list[tuple[float, int, int, int]] = []
    for index, s in enumerate(streams):
        sizes = s.row.chunk_tok or (1,) * len(s.row.chunk_s)
        for number, (at, k) in enumerate(zip(s.row.chunk_s, sizes, strict=True)):
            events.append((at, index, k, number))
    events.sort()
    clusters: list[Cluster] = []
    last = float("-inf")
    for at, index, k, number in events:
        here = clusters[-1] if clusters else None
        if here is None or at - last > near or index in here.tokens or index in here.firsts:
            here = Cluster(at_s=at)
            clusters.append(here)
        if number == 0:
            here.firsts.append(index)
            if k > 1:
                here.tokens[index] = k - 1
        else:
            here.tokens[index] = k
        here.ended += number == len(streams[index].row.chunk_s) - 1
        last = at
    return clusters


def observe(run: Run, batching: Batching = NOTHING_KNOWN) -> list[Observation]:
    """The run's stretches of known work. Knowing the batching cuts them finer: see `_safe`."""
    streams = streams_of(run)
    if not streams:
        return []
    lost = [(r.sent_s, r.done_s or float("inf")) for r in run.rows if not r.chunk_s and r.sent_s is not None]
    found: list[Observation] = []
    for busy, members in enumerate(_busy_periods(streams)):
        start, end = members[0].sent_s, max(s.last_s for s in members)
        if any(a < end and b > start for a, b in lost):
            continue  # a request without a token was there too, and what it cost is not known
        found.extend(_stretches(members, batching, busy))
    return found


def _busy_periods(streams: Sequence[Stream]) -> list[list[Stream]]:
    """Requests grouped so that between two groups nobody was in flight."""
    groups: list[list[Stream]] = []
    end = float("-inf")
    for s in streams:
        if s.sent_s >= end:
            groups.append([])
        groups[-1].append(s)
        end = max(end, s.last_s)
    return groups


def _stretches(streams: list[Stream], batching: Batching, busy: int) -> list[Observation]:
    """One busy period, cut at every cluster where no prompt can be half read."""
    clusters = clusters_of(streams)
    sent = sorted(s.sent_s for s in streams)
    got = [0] * len(streams)
    first_done = last_done = 0
    found: list[Observation] = []
    begin, opened = streams[0].sent_s, True
    part: list[Cluster] = []
    before = [0] * len(streams)
    for cluster in clusters:
        part.append(cluster)
        for i in cluster.firsts:
            got[i] += 1
            first_done += 1
        for i, k in cluster.tokens.items():
            got[i] += k
        last_done += cluster.ended
        waiting = bisect_right(sent, cluster.at_s) - first_done
        if not _safe(batching, waiting=waiting, active=first_done - last_done):
            continue
        found.append(_sum_up(part, streams, before=before, begin=begin, opened=opened, batching=batching, busy=busy))
        begin, opened, part, before = cluster.at_s, False, [], list(got)
    return [o for o in found if o.time_s > 0 and o.steps > 0]


def _safe(batching: Batching, *, waiting: int, active: int) -> bool:
    """Whether no prompt can be half read right after this step.

    Nobody waits; or whole prompts are read in one step; or all seats are taken; or a batch runs that nobody may join.
    """
    if waiting <= 0 or batching.policy == "continuous":
        return True
    if batching.policy in ("static", "dynamic", "none") and active > 0:
        return True
    return batching.seats is not None and active >= batching.seats


def _sum_up(
    part: list[Cluster],
    streams: list[Stream],
    *,
    before: list[int],
    begin: float,
    opened: bool,
    batching: Batching,
    busy: int,
) -> Observation:
    """The work of the clusters in `part`, which began at `begin` with `before` tokens out to each stream."""
    got: dict[int, int] = {}
    seqs = kv = prefill = positions = firsts_only = 0
    for cluster in part:
        for i in cluster.firsts:
            isl, cached = streams[i].isl, streams[i].cached_tok
            prefill += isl - cached
            positions += (isl * (isl - 1) - cached * (cached - 1)) // 2
            got[i] = got.get(i, 0) + 1
        firsts_only += bool(cluster.firsts) and not cluster.tokens
        for i, k in cluster.tokens.items():
            out = before[i] + got.get(i, 0)
            seqs += k
            kv += k * (streams[i].isl + out) + k * (k - 1) // 2
            got[i] = got.get(i, 0) + k
    end = part[-1].at_s
    through = [got.get(i, 0) for i, b in enumerate(before) if b > 0 and streams[i].last_s >= end and i in got]
    steps = max(through) + firsts_only if through else len(part)
    if prefill and batching.budget_tok and not through:
        steps = max(steps, -(-prefill // batching.budget_tok) + sum(1 for c in part if not c.firsts))
    return Observation(
        time_s=end - begin,
        steps=steps,
        seqs=seqs,
        kv_tok=kv,
        prefill_tok=prefill,
        prefill_pos=positions,
        front_end=int(opened),
        front_end_tok=streams[0].isl if opened else 0,
        busy=busy,
    )


def told_by_server(run: Run, batching: Batching = NOTHING_KNOWN) -> list[Observation]:
    """Prefills of lone requests as the server timed them itself (`server["prefill_s"]`): no front end in them."""
    found = []
    streams = streams_of(run)
    for number, members in enumerate(_busy_periods(streams)):
        s = members[0]
        seconds = (s.row.server or {}).get("prefill_s")
        if len(members) > 1 or not seconds or seconds <= 0:
            continue
        new = s.isl - s.cached_tok
        found.append(
            Observation(
                time_s=seconds,
                steps=-(-new // batching.budget_tok) if batching.budget_tok else 1,
                seqs=0,
                kv_tok=0,
                prefill_tok=new,
                prefill_pos=(s.isl * (s.isl - 1) - s.cached_tok * (s.cached_tok - 1)) // 2,
                busy=-1 - number,
            )
        )
    return found
