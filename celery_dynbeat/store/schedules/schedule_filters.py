"""The filter of a list of schedules, as conditions of SQL."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, not_, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import State
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Hold, Schedule
from celery_dynbeat.db.statements import force_index
from celery_dynbeat.store.holds import OWNER_INDEX, everything_is_held
from celery_dynbeat.store.owners import has_text

_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000
#: The states of few schedules: each has an index.
RARE_STATES = frozenset({State.PAUSED, State.FINISHED, State.QUARANTINED, State.FAILING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFilter:
    """The filter of a list of schedules; None means any.

    ``owner_prefix`` is the beginning of the owner. ``text`` is a part of the owner or of the name.
    ``now`` and ``overdue_before`` are needed for the states held and overdue: a schedule is overdue
    if its next_run_at is before that instant.
    """

    owner: str | None = None
    owner_prefix: str | None = None
    task: str | None = None
    enabled: bool | None = None
    tag: str | None = None
    state: State | None = None
    name_prefix: str | None = None
    text: str | None = None
    now: datetime | None = None
    overdue_before: datetime | None = None

    @property
    def is_of_all(self) -> bool:
        """Whether the filter has no condition on the owner."""
        return self.owner is None and self.owner_prefix is None


_ACTIVE = (
    and_(Schedule.enabled),
    Schedule.finished_at.is_(None),
    Schedule.error.is_(None),
)
#: The conditions of each state. The conditions of a rare state imply the condition of its index.
_CONDITIONS: Mapping[State, Sequence[ColumnElement[bool]]] = {
    State.ACTIVE: _ACTIVE,
    State.HELD: _ACTIVE,
    State.PAUSED: (
        not_(Schedule.enabled),
        Schedule.finished_at.is_(None),
        Schedule.error.is_(None),
    ),
    State.FINISHED: (Schedule.finished_at.is_not(None), Schedule.error.is_(None)),
    State.QUARANTINED: (Schedule.error.is_not(None),),
    State.FAILING: (Schedule.failing_since.is_not(None),),
    State.OVERDUE: (Schedule.next_run_at.is_not(None), Schedule.held_at.is_(None)),
}


def in_state(matching: ScheduleFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions of the state. A hold of everything is not considered."""
    conditions = list(_CONDITIONS[matching.state]) if matching.state else []
    if matching.state == State.HELD:
        conditions.append(_has_hold(matching))
    if matching.state == State.OVERDUE:
        conditions += [Schedule.next_run_at < matching.overdue_before, not_(_has_hold(matching))]
    return conditions


def _has_hold(matching: ScheduleFilter) -> ColumnElement[bool]:
    # A hold of everything is read separately: an OR would hide the index on the owner.
    hold = force_index(select(Hold.id), Hold, OWNER_INDEX)
    return exists(hold.where(Hold.owner == Schedule.owner, is_in_force(matching)))


def is_in_force(matching: ScheduleFilter) -> ColumnElement[bool]:
    """Return the condition that a hold has not ended."""
    return or_(Hold.until_at.is_(None), Hold.until_at > matching.now)


def is_everything_held(session: Session, matching: ScheduleFilter) -> bool:
    """Return whether a hold stops the schedules of all owners."""
    return bool(session.scalar(select(everything_is_held(matching.now))))


def has_prefix(matching: ScheduleFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions that the name begins with the prefix, if the filter has one."""
    return _begins(Schedule.name, matching.name_prefix) if matching.name_prefix else []


def has_owner(
    matching: ScheduleFilter, column: Any = Schedule.owner
) -> Sequence[ColumnElement[bool]]:
    """Return the conditions on the owner, if the filter has some."""
    if matching.owner is not None:
        return [column == matching.owner]
    return _begins(column, matching.owner_prefix) if matching.owner_prefix else []


def _begins(column: Any, prefix: str) -> Sequence[ColumnElement[bool]]:
    """Return the conditions that ``column`` begins with the prefix: a range of code points."""
    end = _end_of_prefix(prefix)
    return [column >= prefix] if end is None else [column >= prefix, column < end]


def _end_of_prefix(prefix: str) -> str | None:
    """Return the first text after all texts that begin with ``prefix``, or None without one."""
    shorter = prefix.rstrip(chr(sys.maxunicode))
    if not shorter:
        return None
    following = ord(shorter[-1]) + 1
    is_surrogate = _FIRST_SURROGATE <= following < _AFTER_SURROGATES
    return shorter[:-1] + chr(_AFTER_SURROGATES if is_surrogate else following)


def others(session: Session, matching: ScheduleFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions on task, enabled, tag and text, which no index serves."""
    conditions: list[Any] = []
    if matching.task is not None:
        conditions.append(Schedule.task == matching.task)
    if matching.enabled is not None:
        conditions.append(Schedule.enabled == matching.enabled)
    if matching.tag is not None:
        dialect = session.get_bind(Schedule).dialect
        conditions.append(capabilities_of(dialect).has_tag(Schedule.tags, matching.tag))
    if matching.text is not None:
        conditions.append(has_text(Schedule.owner, Schedule.name, text=matching.text))
    return conditions
