"""A real-time priority is taken for the load alone, or refused in a sentence."""

import contextlib
import os
import sys

import pytest

from servefit.errors import CannotMeasure
from servefit.host.realtime import real_time

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="schedulers are Linux's")


def test_the_priority_is_given_back():
    """Inside it is round robin, after it what it was, also after an error and where it is not allowed."""
    before = os.sched_getscheduler(0)
    with contextlib.suppress(KeyError, CannotMeasure), real_time(wanted=True):
        assert os.sched_getscheduler(0) == os.SCHED_RR
        raise KeyError
    assert os.sched_getscheduler(0) == before


def test_nothing_is_changed_unasked():
    """Without the wish the scheduler stays."""
    before = os.sched_getscheduler(0)
    with real_time(wanted=False):
        assert os.sched_getscheduler(0) == before
