"""Why a schedule did, or did not, run at an instant of the past. PURE.

The first rule that applies decides:

    not yet, a run or skip, created later, finished    the record of this fire time
    history deleted                                    retention has deleted the record
    paused, held                                       what was in force then, from the audit
    trigger changed, no fire time                      the trigger in force then
    quiet hours, still due, no beat

Of a run that was skipped, revoked or late, the pause, the hold or the outage is named as well, also
after its end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from celery_dynbeat.api import ChangeInfo, RunInfo
from celery_dynbeat.common.states import Action, Status, was_started
from celery_dynbeat.common.text import described_owner, format_duration
from celery_dynbeat.insights.explain.facts import Facts
from celery_dynbeat.insights.explain.findings import Cause, Finding, story
from celery_dynbeat.insights.explain.runs import delay_reason, first_line
from celery_dynbeat.planning.plan import SUPERSEDED
from celery_dynbeat.triggers import Excluding
from celery_dynbeat.triggers.zones import describe_instant, load_zone

if TYPE_CHECKING:
    from celery_dynbeat.triggers import Trigger

#: ``at`` means the fire time in the minute that begins with it.
WITHIN = timedelta(minutes=1)
_STEP = timedelta(microseconds=1)


class PastCause(StrEnum):
    """The causes that only an instant of the past has. Programs rely on the values."""

    NOT_YET = "not_yet"
    CREATED_LATER = "created_later"
    TRIGGER_CHANGED = "trigger_changed"
    EXCLUDED_DAY = "excluded_day"
    NO_FIRE_TIME = "no_fire_time"
    NO_RECORD = "no_record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known about ``at``.

    ``run`` has this fire time, or represents it among skipped ones. ``changes`` are the edits of
    the schedule, of its owner and of everything, newest first. ``trigger`` was in force at ``at``,
    with its calendars, and ``edit`` is the later edit that replaced it. ``retention`` is how long
    runs are kept.
    """

    at: datetime
    run: RunInfo | None
    changes: Sequence[ChangeInfo]
    trigger: "Trigger | None" = None
    edit: ChangeInfo | None = None
    retention: timedelta = timedelta.max


def find_past_cause(facts: Facts, past: Past, present: Finding) -> Finding:
    """Return why the schedule did or did not run at ``past.at``.

    ``present`` is the cause of now, which also explains a fire time that is still due.
    """
    return next(_findings(facts, past, present))


def _findings(facts: Facts, past: Past, present: Finding) -> Iterator[Finding]:
    schedule, at = facts.schedule, _when(facts, past.at)
    if past.at > facts.now:
        yield Finding(PastCause.NOT_YET, f"{at} has not come yet. {present.sentence}", present.fix)
    if past.run is not None:
        yield _of_run(facts, past, past.run)
    for skipped_at, reason in facts.skips.items():
        if past.at <= skipped_at < past.at + WITHIN:
            yield skipped_by_call(facts, skipped_at, reason)
    if schedule.created_at >= past.at + WITHIN:
        made = next((each for each in past.changes if each.action == Action.CREATE), None)
        created = f"{_by(made)} created the schedule at {_when(facts, schedule.created_at)}"
        yield Finding(PastCause.CREATED_LATER, f"It did not run at {at}: {created}.")
    if facts.now - past.at > past.retention:
        kept = f"dynbeat_history_retention keeps {format_duration(past.retention)}"
        yield Finding(PastCause.NO_RECORD, f"The runs of {at} are deleted: {kept}.")
    if schedule.finished_at is not None and schedule.finished_at <= past.at:
        yield Finding(Cause.FINISHED, f"It did not run at {at}: it had finished before.")
    yield from _without_run(facts, past, stopped=list(_stops(facts, past)))
    if _is_undecided(facts, past):
        yield Finding(present.cause, f"{at} is still due. {present.sentence}", present.fix)
    yield from _outage(facts, past)
    yield Finding(
        PastCause.NO_RECORD,
        f"It did not run at {at}, and neither the history nor the audit says why.",
        "Read beat's log of that time. Manual SQL leaves no record.",
    )


def _is_undecided(facts: Facts, past: Past) -> bool:
    """Return whether ``past.at`` is a fire time about which beat has not decided yet."""
    if facts.next_fire_at is None or facts.schedule.next_run_at is None or past.trigger is None:
        return False
    fire_at = _fire_time(past.trigger, past.at)
    return fire_at is not None and facts.next_fire_at <= fire_at


def _without_run(facts: Facts, past: Past, *, stopped: Sequence[Finding]) -> Iterator[Finding]:
    at = _when(facts, past.at)
    for each in stopped:
        yield Finding(each.cause, f"It did not run at {at}: {each.sentence}", each.fix)
    if past.trigger is None:
        return
    if _fire_time(past.trigger, past.at) is None:
        yield from _edited(facts, past)
        yield from _excluded(facts, past)
        yield _no_fire_time(facts, past, past.trigger)
    schedule = facts.schedule
    for name, limit in (("start_at", schedule.start_at), ("end_at", schedule.end_at)):
        if limit is not None and (limit > past.at if name == "start_at" else limit < past.at):
            sentence = f"It did not run at {at}: its {name} is {_when(facts, limit)}."
            yield Finding(PastCause.NO_FIRE_TIME, sentence)
    for each in _quiet(facts, past):
        yield Finding(each.cause, f"It did not run at {at}: {each.sentence}", each.fix)


def skipped_by_call(facts: Facts, at: datetime, reason: str) -> Finding:
    """Return that ``skip()`` took out a fire time that has passed."""
    return Finding(
        Cause.SKIPPED, f"The fire time of {_when(facts, at)} was skipped: {first_line(reason)}."
    )


def _of_run(facts: Facts, past: Past, run: RunInfo) -> Finding:
    """Return what happened to the run, with what stopped it."""
    what = "The run of" if was_started(run.status, run.attempt) else "The fire time of"
    sentence = f"{what} {_when(facts, run.scheduled_for)} {story(facts, run)}."
    cause = _STATUSES.get(Status(run.status), Cause.RAN)
    is_late = delay_reason(run, spec=facts.spec) is not None
    if is_late and cause is Cause.RAN:
        cause = Cause.RAN_LATE
    is_stopped = is_of_stop(run)
    stop = None
    if is_stopped or is_late:
        stops = _stops(facts, past, until=_stopped_until(run))
        # A run after quiet hours counts from their end.
        quiet = _quiet(facts, past) if run.error == SUPERSEDED else ()
        stop = next(chain(stops, quiet, _outage(facts, past)), None)
    if stop is None:
        return Finding(cause, sentence)
    sentence = f"{sentence.removesuffix('.')}; {stop.sentence}"
    return Finding(stop.cause if is_stopped else cause, sentence, stop.fix)


def stopped_by(facts: Facts, changes: Sequence[ChangeInfo], run: RunInfo) -> str:
    """Return the end of a sentence that says who paused or held the schedule of the run, and why.

    It is "" if the run was not skipped or revoked because of that.
    """
    if not is_of_stop(run):
        return ""
    past = Past(at=run.scheduled_for, run=run, changes=changes)
    stop = next(_stops(facts, past, until=_stopped_until(run)), None)
    return "" if stop is None else f"; {stop.sentence.removesuffix('.')}"


def is_of_stop(run: RunInfo) -> bool:
    """Return whether a pause, a hold or an outage can be why the run was skipped or revoked."""
    return run.status in {Status.SKIPPED, Status.REVOKED} and (run.error or "").startswith(_STOPPED)


def _stopped_until(run: RunInfo) -> datetime | None:
    # A run can be revoked by a pause after its fire time.
    return run.finished_at if run.status == Status.REVOKED else None


#: The first words of the error of such a run.
_STOPPED = ("missed:", "the schedule was paused")
_STATUSES = {
    Status.PENDING: Cause.NOT_PUBLISHED,
    Status.SENT: Cause.WAITS_IN_QUEUE,
    Status.RUNNING: Cause.RUNNING,
    Status.RETRYING: Cause.RETRYING,
    Status.FAILED: Cause.FAILED,
    Status.LOST: Cause.LOST,
    Status.REVOKED: Cause.REVOKED,
    Status.EXPIRED: Cause.EXPIRED,
    Status.SKIPPED: Cause.SKIPPED,
}


def _stops(facts: Facts, past: Past, *, until: datetime | None = None) -> Iterator[Finding]:
    """Yield the pause and the holds that were in force at the instant."""
    end = past.at if until is None else max(until, past.at)
    before = [each for each in reversed(past.changes) if each.changed_at <= end]
    after = [each for each in reversed(past.changes) if each.changed_at > end]
    pause = None
    for each in before:
        is_disabled = each.action == Action.CREATE and (each.after or {}).get("enabled") is False
        if each.name and (each.action == Action.PAUSE or is_disabled):
            pause = each
        elif each.name and each.action == Action.RESUME:
            pause = None
    if pause is not None:
        resumed = next((each for each in after if each.name and each.action == Action.RESUME), None)
        end_text = "" if resumed is None else f", and {_did(facts, resumed, 'resumed it')}"
        yield Finding(Cause.PAUSED, f"{_did(facts, pause, 'paused it')}{end_text}.")
    holds = {}
    for each in before:
        if each.action == Action.HOLD:
            holds[each.owner] = each
        elif each.action == Action.RELEASE:
            holds.pop(each.owner, None)
    for owner, hold in holds.items():
        until_at = (hold.after or {}).get("until_at")
        if until_at is not None and datetime.fromisoformat(until_at) <= end:
            continue
        whose = "everything" if owner is None else described_owner(owner)
        releases = (each for each in after if each.action == Action.RELEASE)
        released = next((each for each in releases if each.owner == owner), None)
        end_text = "" if released is None else f", and {_did(facts, released, 'released it')}"
        yield Finding(Cause.HELD, f"{_did(facts, hold, f'held {whose}')}{end_text}.")


def _edited(facts: Facts, past: Past) -> Iterator[Finding]:
    """Yield the later edit that gave the schedule the trigger with this fire time."""
    edit, trigger = past.edit, facts.schedule.trigger
    if edit is None or trigger is None:
        return
    yield Finding(
        PastCause.TRIGGER_CHANGED,
        f"It did not run at {_when(facts, past.at)}, because its trigger did not fire then."
        f" {_did(facts, edit, 'changed it')}: {edit.text}.",
    )


def _excluded(facts: Facts, past: Past) -> Iterator[Finding]:
    trigger = past.trigger
    if not isinstance(trigger, Excluding) or _fire_time(trigger.trigger, past.at) is None:
        return
    day = past.at.astimezone(load_zone(trigger.timezone or "UTC")).date()
    calendar = next((each.name for each in trigger.days if day in each.dates), None)
    whose = "its trigger excludes this day" if calendar is None else f"calendar {calendar!r} has it"
    put = next(
        (
            each
            for each in past.changes
            if each.action == Action.UPSERT_CALENDAR
            and (each.after or {}).get("calendar") == calendar
        ),
        None,
    )
    who = "" if put is None or calendar is None else f". {_did(facts, put, 'wrote this calendar')}"
    yield Finding(
        PastCause.EXCLUDED_DAY,
        f"It did not run at {_when(facts, past.at)}: the day {day} is excluded, {whose}{who}.",
    )


def _no_fire_time(facts: Facts, past: Past, trigger: "Trigger") -> Finding:
    after = trigger.next_after(past.at)
    following = "" if after is None else f"; its next fire time then was {_when(facts, after)}"
    return Finding(
        PastCause.NO_FIRE_TIME,
        f"{_when(facts, past.at)} is no fire time: {trigger.describe()}{following}.",
    )


def _quiet(facts: Facts, past: Past) -> Iterator[Finding]:
    quiet = facts.quiet
    if quiet is None or quiet.end(past.at) == past.at:
        return
    put = next((each for each in past.changes if each.action == Action.SET_QUIET_HOURS), None)
    if put is not None and put.changed_at > past.at:
        return
    end = describe_instant(quiet.end(past.at), quiet.windows.zone.key)
    who = "" if put is None else f", which {_did(facts, put, 'set')}"
    yield Finding(
        Cause.QUIET_HOURS,
        f"its owner was {quiet.describe(past.at)} until {end}{who}.",
    )


def _outage(facts: Facts, past: Past) -> Iterator[Finding]:
    """Yield that no beat that is known was alive at the instant."""
    if any(
        beat.started_at is not None and beat.started_at <= past.at <= beat.seen_at
        for beat in facts.beats
    ):
        return
    ended = [beat for beat in facts.beats if beat.seen_at < past.at]
    begun = [beat for beat in facts.beats if (beat.started_at or past.at) > past.at]
    parts = [
        f"{beat.name} was last seen at {_when(facts, beat.seen_at)}"
        for beat in sorted(ended, key=lambda each: each.seen_at)[-1:]
    ]
    parts += [
        f"{beat.name} started at {_when(facts, beat.started_at)}"
        for beat in sorted(begun, key=lambda each: each.started_at or past.at)[:1]
        if beat.started_at is not None
    ]
    seen = f": {', and '.join(parts)}" if parts else ""
    yield Finding(Cause.NO_BEAT, f"no beat is known to have been alive then{seen}.")


def _fire_time(trigger: "Trigger", at: datetime) -> datetime | None:
    """Return the fire time in the minute that begins at ``at``."""
    found = trigger.next_after(at - _STEP)
    return found if found is not None and found < at + WITHIN else None


def _when(facts: Facts, instant: datetime) -> str:
    return describe_instant(instant.replace(microsecond=0), facts.schedule.timezone)


def _by(change: ChangeInfo | None) -> str:
    return (change.actor if change else "") or "a caller"


def _did(facts: Facts, change: ChangeInfo, verb: str) -> str:
    """Return who made the change, when and why: ``alice paused it at 09:00 because of 'x'``."""
    because = f" because of {first_line(change.reason)!r}" if change.reason else ""
    return f"{_by(change)} {verb} at {_when(facts, change.changed_at)}{because}"
