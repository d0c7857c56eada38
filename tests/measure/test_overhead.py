"""Our own overhead is learnt from a server that thinks of nothing."""

from servefit.measure.overhead import EVENTS, STREAMS, own_overhead


def test_the_null_server_tells_what_we_add():
    """Every event is accounted for; an event cannot be known long before it was written, nor a first token."""
    found = own_overhead()
    assert found is not None
    assert found["events"] == STREAMS * EVENTS
    assert -0.001 < found["event_p50_s"] <= found["event_p99_s"]
    assert -0.001 < found["ttft_p50_s"] <= found["ttft_max_s"]
    assert found["cpu_s_per_event"] > 0
