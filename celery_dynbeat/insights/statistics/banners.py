"""The causes that stop all schedules: a hold of everything, or no living beat.

Every page shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api import HoldInfo, Info
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.evaluation import ALIVE, state_of
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import health, holds
from celery_dynbeat.store.nodes import NODE_RETENTION

#: Holds of everything that a page shows, and holds of owners that it counts.
MAX_HOLDS = 5
MAX_COUNTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Banners(Info):
    """The causes that stop all schedules at ``now``.

    ``held_owners`` are the owners with a hold, at most MAX_COUNTED. The first to be held come
    first. ``last_beat_seen_at`` is the end or the last heartbeat of a beat. None means that no beat
    ran in the last 30 days.
    """

    now: datetime
    holds_of_everything: Sequence[HoldInfo]
    held_owners: Sequence[str]
    is_any_beat_alive: bool
    last_beat_seen_at: datetime | None


def banners(context: Context, *, session: Session | None = None) -> Banners:
    """Return what stops all schedules, from the rows of the holds and of the newest beats."""
    now = context.now(session)

    def work(session: Session) -> Banners:
        nodes = health.nodes_statement(NodeKind.BEAT, since=now - NODE_RETENTION)
        beats = session.scalars(nodes).all()
        timeout = context.settings.node_timeout
        states = [state_of(beat, now=now, timeout=timeout) for beat in beats]
        return Banners(
            now=now,
            holds_of_everything=holds_of_everything(session, now=now, limit=MAX_HOLDS),
            held_owners=_held_owners(session, now=now),
            is_any_beat_alive=any(state in ALIVE for state in states),
            last_beat_seen_at=max(
                (beat.stopped_at or beat.seen_at for beat in beats), default=None
            ),
        )

    return context.read(session, work)


def holds_of_everything(session: Session, *, now: datetime, limit: int) -> Sequence[HoldInfo]:
    """Return up to ``limit`` holds of everything that are in force, the oldest first."""
    rows = holds.of_owner(session, owner=None, now=now, limit=limit)
    return tuple(HoldInfo.of(row) for row in sorted(rows, key=lambda row: row.id))


def _held_owners(session: Session, *, now: datetime) -> Sequence[str]:
    rows = holds.of_owners(session, now=now, limit=MAX_COUNTED)
    return tuple(dict.fromkeys(row.owner for row in rows if row.owner is not None))
