"""Plan schedules again, and the duty that plans the unplanned ones, one batch per transaction."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from sqlalchemy.orm import Session

from celery_dynbeat.beat import recording
from celery_dynbeat.beat.decisions import Decider, Decision, decide_rows
from celery_dynbeat.beat.fairness import PlanningTime
from celery_dynbeat.beat.refused import FULL_BATCH, Part, changing
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning import Calendars, calendar_names
from celery_dynbeat.store import calendars as stored_calendars
from celery_dynbeat.store.schedules import calendars_of, due
from celery_dynbeat.store.schedules.due import DueSchedule

#: The maximum number of batches of unplanned schedules that one pass reads if calendars are locked.
MAX_UNPLANNED_BATCHES = 5


def plan_unplanned(
    session: Session, *, now: datetime, settings: Settings, part: Part = FULL_BATCH
) -> int:
    """Plan the next run of up to a batch of unplanned schedules; return their number.

    ``part`` and the errors are as in ``beat.claim``.
    """
    planned, locked = 0, frozenset[str]()
    seen: list[DueSchedule] = []
    for _ in range(MAX_UNPLANNED_BATCHES):
        rows = due.lock_unplanned(
            session,
            limit=part.limit - planned,
            except_calendars=locked,
            except_ids=part.except_ids,
        )
        seen += rows
        names = calendar_names(rows)
        # An UPDATE may fail for a row of an earlier round only at its end.
        with changing(session, seen, part):
            if not names:
                plans = plan_rows(session, rows, now=now, settings=settings)
                write_plans(session, plans, settings=settings)
                return planned + len(rows)
            number, waiting = _plan_and_link(session, rows, names, now=now, settings=settings)
        planned, locked = planned + number, locked | waiting
        if not waiting or planned >= part.limit:
            break
        # The schedules of a locked calendar must not delay the others.
    return planned


def _plan_and_link(
    session: Session,
    rows: Sequence[DueSchedule],
    used: Collection[str],
    *,
    now: datetime,
    settings: Settings,
) -> tuple[int, frozenset[str]]:
    """Plan unplanned schedules, and link them with the calendars ``used`` by their triggers.

    Those whose calendar another transaction has locked stay unplanned. Returns the number of the
    others, and the names of the locked calendars.
    """
    locked = stored_calendars.lock_free(session, used)
    existing = calendars_of(session, rows)
    waiting = frozenset(existing.keys() - locked.keys())
    names = {row.id: calendar_names([row]) for row in rows}
    rows = [row for row in rows if names[row.id].isdisjoint(waiting)]
    # Not read again: a calendar that is created in the meantime is not locked, so it gets no link.
    plans = plan_rows(session, rows, now=now, settings=settings, calendars=existing)
    write_plans(session, plans, settings=settings)
    links = [(row.id, locked[name]) for row in rows for name in names[row.id] if name in locked]
    stored_calendars.add_links(session, links)
    return len(rows), waiting


def plan_rows(
    session: Session,
    rows: Sequence[DueSchedule],
    *,
    now: datetime,
    settings: Settings,
    since: Mapping[int, datetime] = MappingProxyType({}),
    calendars: Calendars | None = None,
) -> Sequence[Decision]:
    """Plan locked schedules again, for ``write_plans``.

    ``since`` contains, by id, the instant after which a schedule is planned. The other schedules
    are planned from ``now``. ``calendars`` are the calendars of the rows, if the caller has read
    them. The result has no decision about a schedule that the planning time does not reach.
    """
    used = calendars_of(session, rows) if calendars is None else calendars
    decider = Decider(now=now, settings=settings, calendars=used)

    def decide(row: DueSchedule, limit: int) -> Decision:
        del limit
        return decider.again(row, since=since.get(row.id, now))

    decisions, _ = decide_rows(rows, decide, now=now, planning_time=PlanningTime())
    return decisions


def write_plans(session: Session, decisions: Sequence[Decision], *, settings: Settings) -> None:
    """Write the decisions of ``plan_rows``."""
    new = recording.record(session, decisions, settings=settings).ids
    recording.advance(session, decisions, new)
