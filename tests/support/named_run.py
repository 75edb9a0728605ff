"""Create the tables, a schedule and a run in a process that has only tables of these names.

    python -m tests.support.named_run URL '{"schema": "billing"}'

``named_tables`` makes calls of each kind. This one is for many names.
"""

import json
import subprocess
import sys
from datetime import timedelta

from celery_dynbeat.db import TableNames
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import MINUTELY, START, application


def make_a_run(url: str, names: TableNames) -> None:
    """Create the tables, a schedule and a run in another process. Raises on any error."""
    settings = {"schema": names.schema, "table_prefix": names.prefix}
    command = [sys.executable, "-m", "tests.support.named_run", url, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def main() -> None:
    """Upgrade, create a schedule, and let beat dispatch a run."""
    url, settings = sys.argv[1:]
    clock = FrozenClock(START)
    with application(url, clock=clock, **json.loads(settings)) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY)
        clock.advance(timedelta(minutes=1))
        beat = ManualBeat(dynbeat)
        beat.run_until_idle()
        assert len(beat.publisher.sent) == 1
        assert [run.status for run in mine.runs("n")] == ["sent"]
        mine.delete("n")


if __name__ == "__main__":
    main()
