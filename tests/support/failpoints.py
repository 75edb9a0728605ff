"""Beats that are killed, held or counted, as the environment says; killed and held only once."""

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
HELD_AT_MOST = 60.0


class CrashingScheduler(DatabaseScheduler):
    """As ours, up to the crash."""

    def failpoint(self, point: str) -> None:
        """Die by SIGKILL at the point of the environment, unless that happened before."""
        marker = Path(os.environ[MARKER_VARIABLE])
        if point == os.environ[POINT_VARIABLE] and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class HoldingScheduler(DatabaseScheduler):
    """As ours, but it waits at a point until the file of the gate is there.

    ``held_marker(gate)`` is there from the moment at which it waits.
    """

    def failpoint(self, point: str) -> None:
        """Wait at the point of the environment, unless that happened before."""
        gate = Path(os.environ[GATE_VARIABLE])
        if point == os.environ[HOLD_VARIABLE] and not held_marker(gate).exists():
            held_marker(gate).touch()
            wait_until(gate.exists, within=HELD_AT_MOST, message=f"nobody opened {gate}")


class CountingScheduler(DatabaseScheduler):
    """As ours; each pass makes the file of the environment one byte longer."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Count, and make the pass."""
        with Path(os.environ[COUNT_VARIABLE]).open("ab") as count:
            count.write(b".")
        return super().tick(*args, **kwargs)


def held_marker(gate: Path) -> Path:
    """Return the file by which a HoldingScheduler says that it waits for ``gate``."""
    return gate.with_suffix(".held")
