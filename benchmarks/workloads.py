"""Build and write the schedules of a benchmark, on any database."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from sqlalchemy import insert, text, update
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Dynbeat, Every, Once
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.triggers import Trigger

OWNERS = 10_000
TASK = "noop"
FAILING_TASK, FAILING_OWNER, FAILING_QUEUE = "fail", "failing", "failing"
HOURS_AFTER = 6
#: Shares of the fire times of a steady load, by interval in seconds.
EVERY_SHARES = {4: 0.1, 10: 0.2, 20: 0.1}
CRON_SHARE, CRON_PERIOD = 0.2, 10
ONCE_SHARE = 0.4
_CHUNK = 5_000
_ANALYSE = {
    "postgresql": "VACUUM ANALYZE dynbeat_schedule",
    "mysql": "ANALYZE TABLE dynbeat_schedule",
    "mariadb": "ANALYZE TABLE dynbeat_schedule",
    "sqlite": "ANALYZE dynbeat_schedule",
}

Row = dict[str, Any]


def burst(count: int, *, due_at: datetime) -> Sequence[Row]:
    """Return ``count`` schedules of 10,000 owners with mixed triggers, all due at ``due_at``.

    Their next fire times are hours later.
    """
    hour = (due_at.hour + HOURS_AFTER) % 24
    triggers = (
        Cron(f"0 {hour} * * mon-fri"),
        Cron(f"30 {hour} * * *", timezone="Europe/Berlin"),
        Every(timedelta(hours=HOURS_AFTER)),
        Every(days=1),
    )
    return [_row(number, triggers[number % len(triggers)], first=due_at) for number in range(count)]


@dataclass(frozen=True, slots=True)
class SteadyLoad:
    """``rate`` fire times a second with mixed triggers, for ``seconds`` from ``start``.

    ``start`` is a whole second. Fire times of intervals and one-offs are spread evenly. A cron
    fires at whole seconds, so a fifth of the fire times of each second fall on one instant.
    """

    rate: int
    seconds: int
    start: datetime

    @property
    def end(self) -> datetime:
        """The instant after the last fire time."""
        return self.start + timedelta(seconds=self.seconds)

    def rows(self) -> Sequence[Row]:
        """Return the rows of the schedules."""
        end_at = self.end - timedelta.resolution
        return [
            # "all": each fire time gets a run, even on a machine that is too slow.
            _row(number, trigger, first=first) | {"end_at": end_at, "catch_up": "all"}
            for number, (trigger, first) in enumerate(self._triggers())
            # A load may be shorter than the longest interval.
            if first <= end_at
        ]

    def count_fire_times(self, rows: Sequence[Row]) -> int:
        """Return the total number of fire times of ``rows``."""
        return sum(self._count_fire_times(row) for row in rows)

    def _count_fire_times(self, row: Mapping[str, Any]) -> int:
        step = period(row["trigger_kind"], row["trigger_spec"])
        return 1 if step is None else ceil((self.end - row["next_fire_at"]) / step)

    def _triggers(self) -> Iterator[tuple[Trigger, datetime]]:
        for seconds, share in EVERY_SHARES.items():
            trigger = Every(timedelta(seconds=seconds))
            yield from ((trigger, at) for at in self._spread(seconds, share))
        for number in range(round(self.rate * CRON_SHARE * CRON_PERIOD)):
            cron = Cron(f"* * * * * {number % CRON_PERIOD}-59/{CRON_PERIOD}")
            first = cron.next_after(self.start - timedelta.resolution)
            assert first is not None
            yield cron, first
        yield from ((Once(at), at) for at in self._spread(self.seconds, ONCE_SHARE))

    def _spread(self, seconds: int, share: float) -> Iterator[datetime]:
        count = round(self.rate * share * seconds)
        for number in range(count):
            yield self.start + timedelta(seconds=(number + 0.5) / count * seconds)


def failing(count: int, *, every: timedelta, start: datetime, end: datetime) -> Sequence[Row]:
    """Return ``count`` schedules of FAILING_OWNER whose runs fail, evenly spread over ``every``.

    Their messages go to FAILING_QUEUE. They fire from ``start`` until before ``end``.
    """
    firsts = [start + (number + 0.5) / count * every for number in range(count)]
    changed = {
        "owner": FAILING_OWNER,
        "task": FAILING_TASK,
        "options": {"queue": FAILING_QUEUE},
        "end_at": end - timedelta.resolution,
        "catch_up": "all",
    }
    return [
        _row(number, Every(every), first=first) | changed for number, first in enumerate(firsts)
    ]


def period(kind: str, spec: str) -> timedelta | None:
    """Return the time between two fire times of a steady load's trigger; None: it fires once."""
    if kind == "once":
        return None
    return timedelta(seconds=CRON_PERIOD if kind == "cron" else int(spec[2:-1]))


def _row(number: int, trigger: Trigger, *, first: datetime) -> Row:
    return {
        "owner": f"user:{number % OWNERS}",
        "name": f"schedule {number}",
        "task": TASK,
        "kwargs": {"user_id": number % OWNERS},
        "trigger_kind": trigger.kind,
        "trigger_spec": trigger.spec,
        "timezone": getattr(trigger, "timezone", None) or "UTC",
        "anchor_at": first if trigger.kind == "every" else None,
        "next_fire_at": first,
        "next_run_at": first,
    }


def write(dynbeat: Dynbeat, rows: Sequence[Row]) -> None:
    """Write ``rows`` in one transaction, notify beat, and analyse the table.

    A database in production has analysed its tables.
    """
    context = dynbeat.context

    def work(session: Session) -> None:
        for start in range(0, len(rows), _CHUNK):
            session.connection().execute(insert(Schedule), list(rows[start : start + _CHUNK]))
        context.notifier.notify(session)

    context.write(None, work)
    engine = context.database.engine
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(_ANALYSE[engine.dialect.name]))


def make_due(dynbeat: Dynbeat, due_at: datetime) -> None:
    """Make all schedules except the application's due at ``due_at``, and notify beat."""
    statement = update(Schedule).where(Schedule.owner != "")

    def work(session: Session) -> None:
        session.execute(statement.values(next_fire_at=due_at, next_run_at=due_at))
        dynbeat.context.notifier.notify(session)

    dynbeat.context.write(None, work)
