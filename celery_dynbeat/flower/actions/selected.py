"""Do the same with each selected schedule, and report what succeeded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.common.text import counted
from celery_dynbeat.flower.base.errors import page_error
from celery_dynbeat.flower.base.messages import Message
from celery_dynbeat.flower.base.selection import ScheduleKey

#: Errors and names that a text lists.
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule with which it did not succeed, and the reason."""

    key: ScheduleKey
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results for the selected schedules. ``rest`` were not tried."""

    done: Sequence[ScheduleKey]
    failed: Sequence[Failure]
    rest: Sequence[ScheduleKey]


def for_each(keys: Sequence[ScheduleKey], call: Callable[[ScheduleKey], object]) -> Outcome:
    """Call ``call`` for each schedule. An error of the database ends the loop.

    Each call is a transaction, so one schedule that fails does not undo the others.
    """
    done: list[ScheduleKey] = []
    failed: list[Failure] = []
    for index, key in enumerate(keys):
        try:
            call(key)
        except DynbeatError as error:
            failed.append(Failure(key, str(error)))
        except SQLAlchemyError as error:
            known = page_error(error)
            failed.append(Failure(key, known.text if known else ""))
            return Outcome(done, failed, keys[index + 1 :])
        else:
            done.append(key)
    return Outcome(done, failed, ())


def report(outcome: Outcome, *, done: str) -> Message:
    """Return the message for an outcome. ``done`` is the participle: "paused"."""
    if not outcome.failed:
        [first, *others] = outcome.done
        what = counted(len(outcome.done), "schedule") if others else f"“{first}”"
        return Message(f"{done.capitalize()} {what}.")
    total = len(outcome.done) + len(outcome.failed) + len(outcome.rest)
    parts = [f"{done.capitalize()} {len(outcome.done)} of {counted(total, 'schedule')}."]
    parts += [f"“{each.key}”: {each.reason.rstrip('.')}." for each in outcome.failed[:_MAX_SHOWN]]
    if len(outcome.failed) > _MAX_SHOWN:
        parts.append(f"{len(outcome.failed) - _MAX_SHOWN} other schedules failed.")
    if outcome.rest:
        parts.append(f"{counted(len(outcome.rest), 'schedule')} not tried.")
    return Message(" ".join(parts), "warning" if outcome.done else "danger")


def names(keys: Sequence[ScheduleKey], *, limit: int = 10) -> Sequence[str]:
    """Return the first names of a selection, and how many follow."""
    shown = [str(key) for key in keys[:limit]]
    return [*shown, f"and {len(keys) - limit} more"] if len(keys) > limit else shown
