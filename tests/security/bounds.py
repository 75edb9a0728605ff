"""The bounds of one API call with any input: CPU, memory, and the length of its error."""

import contextlib
import gc
import time
import tracemalloc

from celery_dynbeat import DynbeatError

SECONDS = 0.5
MEGABYTES = 50
MAX_MESSAGE = 600
MAX_FIELD = 300


def attempt(call, *args, **kwargs):
    """Return the result of the call, or its DynbeatError, and check the bounds."""
    result, seconds = _timed(call, *args, **kwargs)
    assert seconds < SECONDS
    if isinstance(result, DynbeatError):
        assert 10 < len(str(result)) < MAX_MESSAGE
        assert len(getattr(result, "field", None) or "") < MAX_FIELD
    return result


def _timed(call, *args, **kwargs):
    # A garbage collection also scans the objects of earlier tests.
    gc.disable()
    result, started = None, time.thread_time()
    try:
        result = call(*args, **kwargs)
    except DynbeatError as error:
        result = error
    finally:
        seconds = time.thread_time() - started
        gc.enable()
    return result, seconds


def megabytes_of(call, *args, **kwargs):
    """Return the peak memory of the call, without its arguments."""
    tracemalloc.start()
    # tracemalloc makes the call many times slower.
    with contextlib.suppress(DynbeatError):
        call(*args, **kwargs)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak
