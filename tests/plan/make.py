"""Candidates made by hand for the planner's pure parts."""

from servefit.plan import checks
from servefit.plan.plan import Candidate, Capacity, Cost, Figures, Memory
from servefit.stats import Spread

NONE = Spread(n=0)


def candidate(
    seats=8,
    *,
    device="gpu",
    policy="chunked",
    ttft=0.05,
    tpot=0.008,
    rel=0.0,
    usd=None,
    capacity=None,
    fits=True,
    seat_bytes=10,
):
    """A candidate against p99 TTFT 100 ms, p99 TPOT 10 ms and memory, each value give or take `rel`."""
    used = 500 + seat_bytes * seats if fits else 1500

    def around(value):
        return (value * (1 - rel), value * (1 + rel))

    all_checks = (
        checks.make_check("ttft", 0.1, ttft if fits else None, around(ttft)),
        checks.make_check("tpot", 0.01, tpot if fits else None, around(tpot)),
        checks.make_check("memory", 1.0, used / 1000, None),
    )
    return Candidate(
        id=f"{device}/{policy}/{seats}", device=device, model="m", precision="bf16", kv_bits=16, policy=policy, seats=seats,
        budget_tok=2048, tp=1, replicas=1, basis="b", lower_bound=False,
        memory=Memory(usable_bytes=1000, weight_bytes=400, activation_bytes=50, overhead_bytes=50, kv_bytes_per_tok=1.0,
                      kv_per_seat_bytes=seat_bytes, kv_pool_blocks=50, block_tok=16, kv_peak_blocks=5, seats_that_fit=50,
                      needed_bytes=used),
        figures=Figures(n=10, ok=10, failed=0, ttft_s=Spread(n=10, p99=ttft), tpot_s=Spread(n=10, p99=tpot), itl_s=NONE,
                        e2e_s=NONE, output_tok_per_s=1.0, req_per_s=1.0, goodput_req_per_s=1.0, goodput_frac=1.0,
                        duration_s=1.0, busy_frac=0.5, in_flight_mean=1.0, in_flight_peak=seats, preemptions=0, kv_peak_blocks=5) if fits else None,
        checks=all_checks, verdict=checks.overall(all_checks),
        cost=None if usd is None else Cost(usd_per_hour=usd, usd_per_request=None, usd_per_mtok=None, source="s", as_of="2026-11-30"),
        capacity=None if capacity is None else Capacity(req_per_s=capacity, limited_by="ttft", fails_at_req_per_s=None, replicas_for_peak=None),
    )  # fmt: skip
