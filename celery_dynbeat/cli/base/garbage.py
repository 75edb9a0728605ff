"""Python's garbage collector in a command that reads many rows."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: More than the objects of a batch of 500 schedules, which are freed without the collector.
_NEW_OBJECTS = 50_000


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the collector start after 50,000 new objects, within the block.

    By default it starts after 700 and so looks at the objects of a batch many times. In an import
    that took 15% of the processor time. It freed nothing.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(_NEW_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
