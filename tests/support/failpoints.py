"""Schedulers that wait once, or count, at a point that the environment names."""

import os
from pathlib import Path
from typing import Any

from celery_dynbeat.beat.scheduler import DatabaseScheduler
from tests.support.waiting import wait_until

HOLD_VARIABLE = "DYNBEAT_TEST_HOLD_AT"
GATE_VARIABLE = "DYNBEAT_TEST_HOLD_GATE"
COUNT_VARIABLE = "DYNBEAT_TEST_COUNT"

HOLDING = "tests.support.failpoints:HoldingScheduler"
COUNTING = "tests.support.failpoints:CountingScheduler"
MAX_WAIT = 60.0


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
