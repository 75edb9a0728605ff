"""The whole installation: the strip above each page, the banners, and the beats and workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api.reading import count_schedules, schedule_filter
from celery_dynbeat.api.results import HoldInfo
from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.infos import ZERO, BoundedCount
from celery_dynbeat.common.states import UNSTARTED, State, Status
from celery_dynbeat.db.models import Node, NodeKind
from celery_dynbeat.health.nodes import Limits, SeenNode, missing_nodes, seen
from celery_dynbeat.process.context import Context, reading
from celery_dynbeat.store import health, holds
from celery_dynbeat.store.nodes import NODE_RETENTION
from celery_dynbeat.store.rollups import MINUTE, NOTHING, Figures, Minute, last_minutes

MINUTES = 60
#: The minutes of the present lag and rate, with the present one.
RECENT = 6
#: Quarantined and failing schedules that are counted.
MAX_SCHEDULES = 1_000
#: Held owners that a page counts.
MAX_COUNTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of an installation at ``now``, by the clock of the database.

    - ``due`` counts schedules whose time has come, up to 1,000; none during a hold of everything.
    - ``overdue_schedules`` are counted as ``count(state="overdue")`` does, ``overdue_runs`` are
      those that beat sends again. ``oldest_overdue_at`` is when the oldest of them was due.
    - ``running`` counts runs that a worker executes, ``pending`` runs that none has started. At
      most 10,000 unfinished runs are read. ``oldest_pending_at`` is when the oldest was recorded.
    - ``quarantined`` and ``failing`` count schedules, up to 1,000.
    - ``minutes`` have the runs that ended in the last 60 minutes, the present one included, with
      ``last_minutes``.
    """

    now: datetime
    due: BoundedCount
    overdue_schedules: BoundedCount
    overdue_runs: BoundedCount
    oldest_overdue_at: datetime | None
    running: BoundedCount
    pending: BoundedCount
    oldest_pending_at: datetime | None
    quarantined: BoundedCount
    failing: BoundedCount
    minutes: Sequence[Minute]

    @property
    def overdue(self) -> BoundedCount:
        """The number of overdue schedules and runs."""
        return self.overdue_schedules + self.overdue_runs

    def last(self, count: int = MINUTES) -> Figures:
        """Return the sums of the last minutes."""
        return sum((each.figures for each in self.minutes[-count:]), NOTHING)

    @property
    def sent_per_second(self) -> float:
        """The runs that beat has sent per second in the last RECENT minutes."""
        minutes = self.minutes[-RECENT:]
        length = min(self.now, minutes[-1].at + MINUTE) - minutes[0].at
        return self.last(RECENT).sent / length.total_seconds()


@reading
def overview(context: Context, session: Session) -> Overview:
    """Return the numbers of the strip. The number of rows that it reads is bounded."""
    now = context.now(session)
    overdue = schedule_filter(context, ScheduleFilter(state=State.OVERDUE))
    schedules = health.overdue_schedules(session, matching=overdue)
    runs = health.overdue_runs(session, now=now)
    oldest = [each.oldest_at for each in (schedules, runs) if each.oldest_at is not None]
    due_at = health.due_times(session, now=now)
    unfinished = health.count_unfinished(session)
    return Overview(
        now=now,
        due=BoundedCount(count=len(due_at)).cut(health.MAX_COUNTED),
        overdue_schedules=schedules.count,
        overdue_runs=runs.count,
        oldest_overdue_at=min(oldest, default=None),
        running=unfinished[Status.RUNNING],
        pending=sum((unfinished[status] for status in UNSTARTED), ZERO),
        oldest_pending_at=health.unstarted_runs(session).oldest_at,
        quarantined=_schedules(context, session, State.QUARANTINED),
        failing=_schedules(context, session, State.FAILING),
        minutes=last_minutes(session, now=now, number=MINUTES),
    )


def _schedules(context: Context, session: Session, state: State) -> BoundedCount:
    matching = schedule_filter(context, ScheduleFilter(state=state))
    return count_schedules(context, session, matching=matching, limit=MAX_SCHEDULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Banners:
    """The causes that stop all schedules at ``now``: a hold of everything, or no living beat.

    ``held_owners`` are the owners with a hold, at most MAX_COUNTED. The first to be held come
    first. ``dead_beats`` died within the last hour without a replacement, while others are alive.
    ``last_beat_seen_at`` is the end or the last heartbeat of a beat. None means that no beat ran in
    the last 30 days.
    """

    now: datetime
    hold_of_everything: HoldInfo | None
    held_owners: Sequence[str]
    dead_beats: Sequence[Node]
    is_any_beat_alive: bool
    last_beat_seen_at: datetime | None


def banners(context: Context) -> Banners:
    """Return what stops all schedules, from the rows of the holds and of the newest beats."""

    def work(session: Session) -> Banners:
        now, limits = context.now(session), Limits.of(context.settings)
        rows = health.read_nodes(session, since=now - NODE_RETENTION, kinds=[NodeKind.BEAT])
        beats = seen(rows, now=now, timeout=limits.node_timeout)
        recent = [beat for beat in beats if beat.row.seen_at >= limits.nodes_since(now)]
        missing = missing_nodes(recent, NodeKind.BEAT, now=now, limits=limits)
        held = holds.of_owners(session, now=now, limit=MAX_COUNTED)
        everything = holds.in_force(session, owner=None, now=now)
        return Banners(
            now=now,
            hold_of_everything=next(map(HoldInfo.of, everything), None),
            held_owners=[*dict.fromkeys(row.owner for row in held if row.owner is not None)],
            dead_beats=missing.died[: health.MAX_NAMED] if missing and missing.alive else [],
            is_any_beat_alive=any(beat.is_alive for beat in beats),
            last_beat_seen_at=max((beat.last_seen_at for beat in beats), default=None),
        )

    return context.read(None, work)


@reading
def nodes(context: Context, session: Session) -> Sequence[SeenNode]:
    """Return the beats and workers of the last hour, at most 200 of each, the newest first."""
    now, limits = context.now(session), Limits.of(context.settings)
    rows = health.read_nodes(session, since=limits.nodes_since(now), names=[Node.queues])
    return seen(rows, now=now, timeout=limits.node_timeout)
