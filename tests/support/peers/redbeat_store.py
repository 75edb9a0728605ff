"""Write entries with celery-redbeat; rows of JSON are on stdin.

``schedule`` is ``[kind, arguments]`` with the kind ``interval``, ``crontab`` or ``rrule``.
``last_run_at`` and ``total_run_count`` are set as a beat does.
"""

import json
import sys
from datetime import datetime
from typing import Any

from celery import Celery
from celery.schedules import crontab, schedule
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

KINDS = {"interval": schedule, "crontab": crontab, "rrule": rrule}
INSTANTS = ("dtstart", "until")


def _schedule(kind: str, arguments: dict[str, Any]) -> Any:
    parsed = {
        key: datetime.fromisoformat(value) if key in INSTANTS else value
        for key, value in arguments.items()
    }
    return KINDS[kind](**parsed)


def main(url: str, timezone: str = "UTC", settings: str = "{}") -> None:
    """Write the rows to the Redis ``url``, with more settings of RedBeat as JSON."""
    app = Celery("redbeat")
    app.conf.update(redbeat_redis_url=url, timezone=timezone, **json.loads(settings))
    for row in json.load(sys.stdin):
        last, count = row.pop("last_run_at", None), row.pop("total_run_count", None)
        row["schedule"] = _schedule(*row["schedule"])
        entry = RedBeatSchedulerEntry(app=app, **row).save()
        if last is not None:
            entry.total_run_count = (count or 1) - 1
            entry.next(last_run_at=datetime.fromisoformat(last))


if __name__ == "__main__":
    main(*sys.argv[1:])
