"""What one call may cost, whatever it is given: CPU, memory, and the length of its error."""

import contextlib
import gc
import time
import tracemalloc

from celery_dynbeat import DynbeatError

SECONDS = 0.5
MEGABYTES = 50
LONGEST_MESSAGE = 600
LONGEST_FIELD = 300


def attempt(call, *args, **kwargs):
    """Return what the call returns, or the error of ours that it raises, within its bounds."""
    found, seconds = _timed(call, *args, **kwargs)
    assert seconds < SECONDS
    if isinstance(found, DynbeatError):
        assert 10 < len(str(found)) < LONGEST_MESSAGE
        assert len(getattr(found, "field", None) or "") < LONGEST_FIELD
    return found


def _timed(call, *args, **kwargs):
    # A collection looks through all that the process holds, of the tests before too.
    gc.disable()
    found, started = None, time.thread_time()
    try:
        found = call(*args, **kwargs)
    except DynbeatError as error:
        found = error
    finally:
        seconds = time.thread_time() - started
        gc.enable()
    return found, seconds


def megabytes_of(call, *args, **kwargs):
    """Return how much memory the call takes at most, beside what it is given."""
    tracemalloc.start()
    # To trace its memory takes many times longer than to run it.
    with contextlib.suppress(DynbeatError):
        call(*args, **kwargs)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak
