"""The causes that stop all schedules: a hold of everything, or no living beat; and dead beats.

Every page shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api import HoldInfo, Info
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.evaluation import ALIVE, SHOWN_FOR, Limits, missing_nodes, state_of
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import health, holds
from celery_dynbeat.store.nodes import NODE_RETENTION

#: Held owners that a page counts.
MAX_COUNTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadBeat(Info):
    """A beat that died without a replacement, and its last heartbeat.

    A beat that was stopped is not dead.
    """

    name: str
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Banners(Info):
    """The causes that stop all schedules at ``now``.

    ``held_owners`` are the owners with a hold, at most MAX_COUNTED. The first to be held come
    first. ``dead_beats`` died within the last hour, while others are alive.
    ``last_beat_seen_at`` is the end or the last heartbeat of a beat. None means that no beat
    ran in the last 30 days.
    """

    now: datetime
    hold_of_everything: HoldInfo | None
    held_owners: Sequence[str]
    dead_beats: Sequence[DeadBeat]
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
        recent = [beat for beat in beats if beat.seen_at >= now - max(SHOWN_FOR, timeout)]
        limits = Limits.of(context.settings)
        missing = missing_nodes(recent, NodeKind.BEAT, now=now, limits=limits)
        dead = missing.died[: health.MAX_NAMED] if missing is not None and missing.alive else ()
        return Banners(
            now=now,
            hold_of_everything=hold_of_everything(session, now=now),
            held_owners=_held_owners(session, now=now),
            dead_beats=tuple(DeadBeat(name=beat.name, seen_at=beat.seen_at) for beat in dead),
            is_any_beat_alive=any(state in ALIVE for state in states),
            last_beat_seen_at=max(
                (beat.stopped_at or beat.seen_at for beat in beats), default=None
            ),
        )

    return context.read(session, work)


def hold_of_everything(session: Session, *, now: datetime) -> HoldInfo | None:
    """Return the hold of everything, or None if none is in force."""
    return next(map(HoldInfo.of, holds.in_force(session, owner=None, now=now)), None)


def _held_owners(session: Session, *, now: datetime) -> Sequence[str]:
    rows = holds.of_owners(session, now=now, limit=MAX_COUNTED)
    return tuple(dict.fromkeys(row.owner for row in rows if row.owner is not None))
