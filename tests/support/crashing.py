"""A beat that is killed at the point of its pass which the environment names; once."""

import os
import signal
from pathlib import Path

from celery_dynbeat.scheduler import DatabaseScheduler

POINT_VARIABLE = "DYNBEAT_TEST_CRASH_AT"
MARKER_VARIABLE = "DYNBEAT_TEST_CRASH_MARKER"


class CrashingScheduler(DatabaseScheduler):
    """As ours, up to the crash."""

    def reached(self, point: str) -> None:
        """Die by SIGKILL at the point of the environment, unless that happened before."""
        marker = Path(os.environ[MARKER_VARIABLE])
        if point == os.environ[POINT_VARIABLE] and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
