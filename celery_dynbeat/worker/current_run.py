"""The information that a task can read about the run that executes it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn

from celery._state import _task_stack
from celery.app.task import Task

from celery_dynbeat.api import dynbeat_of
from celery_dynbeat.broker import (
    HEADER_FIRE_AT,
    admitted_attempt,
    attempt_of,
    claimed_run_id,
    instant_in,
    origin_of,
    schedule_of,
)
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import NOTE_LENGTH, cut, shorten
from celery_dynbeat.store import runs
from celery_dynbeat.worker import PostponeRun, set_note

#: The longest time by which a task can postpone its run.
MAX_POSTPONED = timedelta(days=30)
#: A run that its task postpones by less is sent after this time, so that it does not run in a loop.
_SHORTEST = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class CurrentRun:
    """The run that executes the current task.

    - ``run_id`` is the id of the run, which is also the id of the task.
    - ``owner`` and ``schedule`` are the owner and the name of the schedule.
    - ``fire_at`` is the fire time, aware and in UTC. A rerun has the fire time of the
      original run.
    - ``attempt`` is the number of this attempt, counted from 1. A retry is an attempt.
    - ``origin`` is ``"schedule"``, ``"manual"``, ``"backfill"`` or ``"rerun"``. If a beat does not
      know the header ``dynbeat_origin``, the origin of all its runs is ``"schedule"``.
    """

    run_id: str
    owner: str
    schedule: str
    fire_at: datetime
    attempt: int
    origin: str
    _now: Callable[[], datetime] = field(repr=False, compare=False)
    _read_last_success: Callable[[], datetime | None] = field(repr=False, compare=False)

    @cached_property
    def last_success_at(self) -> datetime | None:
        """The newest earlier fire time of the schedule whose run succeeded, in UTC.

        It is None if no such run exists, if the schedule was deleted, or if the run is older than
        dynbeat_history_retention or than the last 10,000 runs. Manual runs count. The value is read
        from the database when it is first used, which raises SQLAlchemyError if the database is
        unreachable.
        """
        return self._read_last_success()

    def postpone(self, *, until: datetime | timedelta) -> NoReturn:
        """End the body, and let beat send the run again at ``until``. No attempt counts.

        ``until`` is an aware datetime in the future, or a timedelta from now, and at most 30 days
        away. The retries that the run has left do not change, and neither do its failures. Holds,
        quiet hours and limits are asked again at ``until``. A run whose ``expires_after`` passes
        until then expires. The call raises Celery's ``Ignore``, which the task must not catch.

        Raises InvalidArgumentError if ``until`` is invalid.
        """
        now = self._now()
        raise PostponeRun(max(_instant_of(until, now=now), now + _SHORTEST))


def current_run() -> CurrentRun | None:
    """Return the run that executes the current task.

    The result is None outside a task, in a task that no schedule sent, and in a task that another
    task sent. A task that another task calls as a function belongs to the caller's run. Threads
    that a task starts are outside the task.
    """
    executed = _executed_task()
    run_id = None if executed is None else claimed_run_id(executed.request)
    return None if executed is None or run_id is None else _run_of(*executed, run_id)


def _instant_of(until: object, *, now: datetime) -> datetime:
    at = None
    if isinstance(until, timedelta):
        # A timedelta can be too long for an instant.
        at = now + max(min(until, 2 * MAX_POSTPONED), -MAX_POSTPONED)
    elif isinstance(until, datetime) and until.utcoffset() is not None:
        at = until
    if at is None or not now < at <= now + MAX_POSTPONED:
        msg = (
            f"until = {shorten(until)}: must be an aware datetime in the future or a timedelta"
            f" above 0, and at most {MAX_POSTPONED.days} days away"
        )
        raise InvalidArgumentError(msg, field="until")
    return at.astimezone(UTC)


def note(text: str) -> None:
    """Store up to 500 characters of result on the run that executes the current task.

    The note is written to the history together with the end of the attempt, without a further
    statement. The last call takes effect. If an attempt stores no note, the note of the previous
    attempt remains. If the process dies, the note is lost. Outside a run, the call does nothing.
    Raises TypeError if ``text`` is not a string.
    """
    if not isinstance(text, str):
        msg = f"the note {text!r} must be a string: call note(str(...))"  # type: ignore[unreachable]
        raise TypeError(msg)
    executed = _executed_task()
    if executed is not None and claimed_run_id(executed.request) is not None:
        set_note(executed.request, cut(text, NOTE_LENGTH))


def _run_of(task: Task, request: Any, run_id: str) -> CurrentRun | None:
    """Return the same object for each call in one attempt, so that it reads the database once."""
    attempt = _present_attempt(request)
    known = getattr(request, "dynbeat_run", None)
    if not isinstance(known, CurrentRun) or known.attempt != attempt:
        fire_at = instant_in(request, HEADER_FIRE_AT)
        if fire_at is None:
            # Beat sent no such message.
            return None
        known = _new_run(task, request, run_id, attempt, fire_at)
        request.dynbeat_run = known
    return known


def _new_run(task: Task, request: Any, run_id: str, attempt: int, fire_at: datetime) -> CurrentRun:
    owner, name = schedule_of(request)

    def read_last_success() -> datetime | None:
        read = partial(runs.last_success, run_id=run_id, before=fire_at)
        return dynbeat_of(task.app).context.database.read_in_transaction(read)

    def now() -> datetime:
        return dynbeat_of(task.app).context.now_or_host_time()

    return CurrentRun(
        run_id=run_id,
        owner=owner,
        schedule=name,
        fire_at=fire_at,
        attempt=attempt,
        origin=origin_of(request),
        _now=now,
        _read_last_success=read_last_success,
    )


class _ExecutedTask(NamedTuple):
    """A task and the request of its message."""

    task: Task
    request: Any


def _executed_task() -> _ExecutedTask | None:
    """Return the task that a message started, or None outside of a task.

    A task that another task calls as a function belongs to the caller's message.
    """
    # Celery keeps one stack of tasks for each thread or greenlet, and one of requests for each task
    # in it.
    depths: Counter[str] = Counter()
    for task in reversed(_task_stack.stack):
        depths[task.name] += 1
        request = task.request_stack.stack[-depths[task.name]]
        if not request.called_directly:
            return _ExecutedTask(task, request)
    return None


def _present_attempt(request: Any) -> int:
    """Return the number of the attempt that executes the request of a run."""
    admitted = admitted_attempt(request)
    if admitted is not None:
        return admitted
    # ManualBeat sets the number of the present attempt. In a worker, before the guard has decided,
    # the header has the number of the attempt before.
    return (attempt_of(request) or 0) + (not request.is_eager)
