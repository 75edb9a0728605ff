"""Schedulers that crash, wait or count at a point that the environment names.

A crash and a wait happen only once.
"""

import os
import signal
from pathlib import Path
from typing import Any

from celery_dynbeat.beat.scheduler import DatabaseScheduler
from tests.support.waiting import wait_until

POINT_VARIABLE = "DYNBEAT_TEST_CRASH_AT"
MARKER_VARIABLE = "DYNBEAT_TEST_CRASH_MARKER"
HOLD_VARIABLE = "DYNBEAT_TEST_HOLD_AT"
GATE_VARIABLE = "DYNBEAT_TEST_HOLD_GATE"
COUNT_VARIABLE = "DYNBEAT_TEST_COUNT"

CRASHING = "tests.support.failpoints:CrashingScheduler"
HOLDING = "tests.support.failpoints:HoldingScheduler"
COUNTING = "tests.support.failpoints:CountingScheduler"
MAX_WAIT = 60.0


class CrashingScheduler(DatabaseScheduler):
    """The scheduler of the package, with a crash at one point."""

    def failpoint(self, point: str) -> None:
        """Kill the process at the point of the environment, unless that happened before."""
        marker = Path(os.environ[MARKER_VARIABLE])
        if point == os.environ[POINT_VARIABLE] and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class HoldingScheduler(DatabaseScheduler):
    """The scheduler of the package, which waits at one point until the gate file exists.

    ``held_marker(gate)`` exists as soon as it waits.
    """

    def failpoint(self, point: str) -> None:
        """Wait at the point of the environment, unless that happened before."""
        gate = Path(os.environ[GATE_VARIABLE])
        if point == os.environ[HOLD_VARIABLE] and not held_marker(gate).exists():
            held_marker(gate).touch()
            wait_until(gate.exists, within=MAX_WAIT, message=f"no test created {gate}")


class CountingScheduler(DatabaseScheduler):
    """The scheduler of the package; each pass appends one byte to the file of the environment."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Count and make a pass."""
        with Path(os.environ[COUNT_VARIABLE]).open("ab") as count:
            count.write(b".")
        return super().tick(*args, **kwargs)


def held_marker(gate: Path) -> Path:
    """Return the file that a HoldingScheduler creates when it waits for ``gate``."""
    return gate.with_suffix(".held")
