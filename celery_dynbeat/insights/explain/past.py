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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain

from celery_dynbeat.api.results import ChangeInfo, RunInfo
from celery_dynbeat.common.states import Action, Status, was_started
from celery_dynbeat.common.text import described_owner, first_line, format_duration
from celery_dynbeat.insights.explain.causes import Cause, Finding, because_of, story
from celery_dynbeat.insights.explain.facts import Facts
from celery_dynbeat.insights.explain.runs import delay_reason
from celery_dynbeat.planning.plan import SUPERSEDED
from celery_dynbeat.triggers import Excluding, Trigger
from celery_dynbeat.triggers.zones import describe_instant, load_zone

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
    trigger: Trigger | None = None
    edit: ChangeInfo | None = None
    retention: timedelta = timedelta.max


def find_past_causes(facts: Facts, past: Past, present: Finding) -> Iterator[Finding]:
    """Yield why the schedule did or did not run at ``past.at``. The first cause decides.

    ``present`` is the cause of now, which also explains a fire time that is still due.
    """
    schedule, at = facts.schedule, _when(facts, past.at)
    if past.at > facts.now:
        yield Finding(PastCause.NOT_YET, f"{at} has not come yet. {present.sentence}", present.fix)
    if past.run is not None:
        yield _of_run(facts, past, past.run)
    for skipped_at, reason in facts.skips.items():
        if past.at <= skipped_at < past.at + WITHIN:
            when, why = _when(facts, skipped_at), first_line(reason)
            yield Finding(Cause.SKIPPED, f"The fire time of {when} was skipped: {why}.")
    not_run = f"It did not run at {at}"
    if schedule.created_at >= past.at + WITHIN:
        made = next((each for each in past.changes if each.action == Action.CREATE), None)
        created = f"{_by(made)} created the schedule at {_when(facts, schedule.created_at)}"
        yield Finding(PastCause.CREATED_LATER, f"{not_run}: {created}.")
    if facts.now - past.at > past.retention:
        kept = f"dynbeat_history_retention keeps {format_duration(past.retention)}"
        yield Finding(PastCause.NO_RECORD, f"The runs of {at} are deleted: {kept}.")
    if schedule.finished_at is not None and schedule.finished_at <= past.at:
        yield Finding(Cause.FINISHED, f"{not_run}: it had finished before.")
    for each in _without_run(facts, past):
        yield replace(each, sentence=f"{not_run}{each.sentence}")
    if _is_undecided(facts, past):
        yield Finding(present.cause, f"{at} is still due. {present.sentence}", present.fix)
    yield from _outage(facts, past)
    yield Finding(
        PastCause.NO_RECORD,
        f"{not_run}, and neither the history nor the audit says why.",
        "Read beat's log of that time. Manual SQL leaves no record.",
    )


def _is_undecided(facts: Facts, past: Past) -> bool:
    """Return whether ``past.at`` is a fire time about which beat has not decided yet."""
    if facts.next_fire_at is None or facts.schedule.next_run_at is None or past.trigger is None:
        return False
    fire_at = _fire_time(past.trigger, past.at)
    return fire_at is not None and facts.next_fire_at <= fire_at


def _without_run(facts: Facts, past: Past) -> Iterator[Finding]:
    """Yield why there was no run. The sentences continue "It did not run at ..."."""
    for each in _stops(facts, past):
        yield replace(each, sentence=f": {each.sentence}")
    if past.trigger is None:
        return
    if _fire_time(past.trigger, past.at) is None:
        yield from _edited(facts, past)
        yield from _excluded(facts, past)
        yield _no_fire_time(facts, past, past.trigger)
    start_at, end_at = facts.schedule.start_at, facts.schedule.end_at
    if start_at is not None and start_at > past.at:
        yield Finding(PastCause.NO_FIRE_TIME, f": its start_at is {_when(facts, start_at)}.")
    if end_at is not None and end_at < past.at:
        yield Finding(PastCause.NO_FIRE_TIME, f": its end_at is {_when(facts, end_at)}.")
    for each in _quiet(facts, past):
        yield replace(each, sentence=f": {each.sentence}")


def _of_run(facts: Facts, past: Past, run: RunInfo) -> Finding:
    """Return what happened to the run, with what stopped it."""
    what = "The run of" if was_started(run.status, run.attempt) else "The fire time of"
    sentence = f"{what} {_when(facts, run.fire_at)} {story(facts, run)}."
    cause = _CAUSES.get(run.status) or Cause(run.status)
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
    past = Past(at=run.fire_at, run=run, changes=changes)
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
#: The causes of the statuses that have another name.
_CAUSES: Mapping[str, Cause] = {
    Status.PENDING: Cause.NOT_PUBLISHED,
    Status.SENT: Cause.WAITS_IN_QUEUE,
    Status.SUCCEEDED: Cause.RAN,
}


def pause_in_force(changes: Iterable[ChangeInfo], *, until: datetime) -> ChangeInfo | None:
    """Return the edit that paused the schedule until the instant; ``changes`` are newest first.

    An earlier schedule may have had the name.
    """
    for each in changes:
        if not each.name or each.changed_at > until:
            continue
        if each.action == Action.CREATE:
            return each if (each.after or {}).get("enabled") is False else None
        if each.action in {Action.PAUSE, Action.RESUME}:
            return each if each.action == Action.PAUSE else None
    return None


def _stops(facts: Facts, past: Past, *, until: datetime | None = None) -> Iterator[Finding]:
    """Yield the pause and the holds that were in force at the instant."""
    end = past.at if until is None else max(until, past.at)
    oldest_first = list(reversed(past.changes))
    after = [each for each in oldest_first if each.changed_at > end]
    pause = pause_in_force(past.changes, until=end)
    if pause is not None:
        resumed = next((each for each in after if each.name and each.action == Action.RESUME), None)
        end_text = "" if resumed is None else f", and {_did(facts, resumed, 'resumed it')}"
        yield Finding(Cause.PAUSED, f"{_did(facts, pause, 'paused it')}{end_text}.")
    holds = {}
    for each in oldest_first:
        if each.changed_at > end:
            break
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
    if past.edit is not None and facts.schedule.trigger is not None:
        changed = f"{_did(facts, past.edit, 'changed it')}: {past.edit.text}"
        why = f", because its trigger did not fire then. {changed}."
        yield Finding(PastCause.TRIGGER_CHANGED, why)


def _excluded(facts: Facts, past: Past) -> Iterator[Finding]:
    trigger = past.trigger
    if not isinstance(trigger, Excluding) or _fire_time(trigger.trigger, past.at) is None:
        return
    day = past.at.astimezone(load_zone(trigger.timezone or "UTC")).date()
    calendar = next((each.name for each in trigger.days if day in each.dates), None)
    whose = "its trigger excludes this day" if calendar is None else f"calendar {calendar!r} has it"
    writes = (each for each in past.changes if each.action == Action.UPSERT_CALENDAR)
    put = next((each for each in writes if (each.after or {}).get("calendar") == calendar), None)
    who = "" if put is None or calendar is None else f". {_did(facts, put, 'wrote this calendar')}"
    yield Finding(PastCause.EXCLUDED_DAY, f": the day {day} is excluded, {whose}{who}.")


def _no_fire_time(facts: Facts, past: Past, trigger: Trigger) -> Finding:
    after = trigger.next_after(past.at)
    following = "" if after is None else f"; its next fire time then was {_when(facts, after)}"
    why = f", which is no fire time: {trigger.describe()}{following}."
    return Finding(PastCause.NO_FIRE_TIME, why)


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
    at = past.at
    if any(beat.row.started_at <= at <= beat.last_seen_at for beat in facts.beats):
        return
    ended = [beat for beat in facts.beats if beat.last_seen_at < at]
    begun = [beat for beat in facts.beats if beat.row.started_at > at]
    parts = []
    if ended:
        last = max(ended, key=lambda beat: beat.last_seen_at)
        parts.append(f"{last.row.name} was last seen at {_when(facts, last.last_seen_at)}")
    if begun:
        first = min(begun, key=lambda beat: beat.row.started_at)
        parts.append(f"{first.row.name} started at {_when(facts, first.row.started_at)}")
    seen = f": {', and '.join(parts)}" if parts else ""
    yield Finding(Cause.NO_BEAT, f"no beat is known to have been alive then{seen}.")


def _fire_time(trigger: Trigger, at: datetime) -> datetime | None:
    """Return the fire time in the minute that begins at ``at``."""
    found = trigger.next_after(at - _STEP)
    return found if found is not None and found < at + WITHIN else None


def _when(facts: Facts, instant: datetime) -> str:
    return describe_instant(instant.replace(microsecond=0), facts.schedule.timezone)


def _by(change: ChangeInfo | None) -> str:
    return (change.actor if change else "") or "a caller"


def _did(facts: Facts, change: ChangeInfo, verb: str) -> str:
    """Return who made the change, when and why: ``alice paused it at 09:00 because of 'x'``."""
    at = _when(facts, change.changed_at)
    return f"{_by(change)} {verb} at {at}{because_of(change.reason)}"
