"""Rules about the causes that stop every fire time: the row, a person, or beat. PURE."""

import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta

from celery_dynbeat.api import HoldInfo
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.states import Status
from celery_dynbeat.common.text import counted, described_owner, format_distance, format_duration
from celery_dynbeat.health.evaluation import NodeState
from celery_dynbeat.health.stopped_work import release_command
from celery_dynbeat.insights.explain.facts import Facts
from celery_dynbeat.insights.explain.findings import Cause, Finding, age_text, story
from celery_dynbeat.insights.explain.runs import ON_TIME, first_line
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import Plan, due_at, plan
from celery_dynbeat.planning.upcoming import MAX_CAUGHT_UP
from celery_dynbeat.store.schedules import REFUSED_PREFIX
from celery_dynbeat.triggers.zones import describe_instant


def row_rules(facts: Facts) -> Iterator[Finding]:
    """Yield the causes in the row itself: quarantine and pause."""
    schedule = facts.schedule
    if schedule.error is not None:
        yield _unreadable(facts) if _waits_unread(facts) else _quarantined(facts)
    if not schedule.enabled:
        yield _paused(facts)


def _waits_unread(facts: Facts) -> bool:
    """Return whether the error comes only from reading the row here and now.

    Beat leaves a schedule whose kind of trigger it does not know to a newer beat.
    """
    return facts.schedule.next_run_at is not None


def _unreadable(facts: Facts) -> Finding:
    return Finding(
        Cause.TRIGGER_UNREADABLE,
        f"This version cannot read its trigger or window: {first_line(facts.schedule.error)}.",
        "Upgrade all beats if a newer version wrote it, or give it another one with update.",
    )


def _quarantined(facts: Facts) -> Finding:
    return Finding(
        Cause.QUARANTINED,
        f"It does not run: it is quarantined, because {first_line(facts.schedule.error)}.",
        "Correct it with update, which ends the quarantine, or delete it.",
    )


def _paused(facts: Facts) -> Finding:
    who = facts.paused_by or "a caller"
    when = "" if facts.paused_at is None else f" {format_distance(facts.paused_at, now=facts.now)}"
    reason = first_line(facts.schedule.paused_reason)
    because = f" because of {reason!r}" if reason else ""
    is_refused = facts.schedule.managed_by and reason.startswith(REFUSED_PREFIX)
    return Finding(
        Cause.PAUSED,
        f"It does not run: {who} paused it{when}{because}.{_end_of_pause(facts)}"
        f"{_unfinished(facts)}",
        "Correct the entry of beat_schedule, and restart beat."
        if is_refused
        else f"{_resume(facts)} starts it again. Fire times of the pause are not run again.",
    )


def _end_of_pause(facts: Facts) -> str:
    """Return a sentence about the end of the pause, "" if only a resume ends it."""
    until = facts.schedule.paused_until
    if until is None:
        return ""
    if until <= facts.now:
        return " The pause has ended: the next pass of a beat resumes it."
    at = describe_instant(until, facts.schedule.timezone)
    return f" Beat resumes it at {at} ({format_distance(until, now=facts.now)})."


def _resume(facts: Facts) -> str:
    owner, name = shlex.quote(facts.schedule.owner), shlex.quote(facts.schedule.name)
    scope = f" --owner={owner}" if facts.schedule.owner else ""
    return f"`celery -A your_app dynbeat resume{scope} -- {name}`"


def _unfinished(facts: Facts) -> str:
    """Return a sentence about the newest run if it has not ended, because it may still run."""
    run = facts.newest
    if run is None or run.finished_at is not None:
        return ""
    return f" The run from {age_text(facts, run)} {story(facts, run)}."


def hold_rules(facts: Facts) -> Iterator[Finding]:
    """Yield the hold in force, if the schedule has fire times left, or a run that waits."""
    waits = facts.newest is not None and facts.newest.is_waiting
    if facts.holds and (waits or not facts.is_finished):
        hold = facts.holds[0]
        also = ["everything" if each.owner is None else "its owner" for each in facts.holds[1:]]
        more = f", and {also[0]} is held as well" if also else ""
        yield Finding(
            Cause.HELD,
            f"It does not run: {_hold_text(facts, hold)}{more}.{_unfinished(facts)}",
            f"End the hold: `{release_command(hold.owner)}`.",
        )


def quiet_rules(facts: Facts) -> Iterator[Finding]:
    """Yield the quiet hours for whose end a fire time waits."""
    spec, fire_at, sent_at = facts.spec, facts.next_fire_at, facts.schedule.next_run_at
    if spec is None or fire_at is None or sent_at is None or not fire_at <= facts.now < sent_at:
        return
    if not facts.is_quiet:
        return
    yield Finding(
        Cause.QUIET_HOURS,
        f"It does not run now: {quiet_text(facts)}. {_at_the_end(facts, spec, fire_at)}"
        f"{_unfinished(facts)}",
        quiet_fix(facts),
    )


def _at_the_end(facts: Facts, spec: ScheduleSpec, fire_at: datetime) -> str:
    """Return what the next pass of beat does with the fire times from ``fire_at`` on."""
    run_count = facts.schedule.run_count
    try:
        end = due_at(spec, fire_at, now=facts.now)
        made = plan(spec, fire_at=fire_at, run_count=run_count, now=end, limit=MAX_CAUGHT_UP)
    except InvalidTriggerError:
        # The searches together take too many steps.
        made = Plan()
    first = f"The fire time {format_distance(fire_at, now=facts.now)}"
    if not made.runs and made.skips:
        return f"{first} is skipped then: {made.skips[-1].reason}."
    if made.runs in {(), (fire_at,)} and not made.skips:
        return f"{first} waits until then."
    newest = format_distance(made.runs[-1], now=facts.now)
    if len(made.runs) == 1:
        others = counted(sum(skip.count for skip in made.skips), "other fire time")
        return f"The fire time {newest} is sent then, in place of {others}."
    return f"Then {counted(len(made.runs), 'fire time')} are sent, the last one {newest}."


def quiet_text(facts: Facts) -> str:
    """Return until when the present quiet time lasts. It is quiet now."""
    quiet = facts.quiet
    assert quiet is not None  # noqa: S101 - it is quiet
    end = describe_instant(quiet.end(facts.now), quiet.windows.zone.key)
    return f"its owner is {quiet.describe(facts.now)} until {end}"


def quiet_fix(facts: Facts) -> str:
    """Return the command that shows the quiet hours."""
    owner = shlex.quote(facts.schedule.owner)
    return f"`celery -A your_app dynbeat quiet-hours --owner={owner}` shows the windows."


def window_rules(facts: Facts) -> Iterator[Finding]:
    """Yield the window in which a fire time waits."""
    fire_at, sent_at = facts.next_fire_at, facts.schedule.next_run_at
    if fire_at is not None and sent_at is not None and fire_at <= facts.now < sent_at:
        yield Finding(
            Cause.IN_WINDOW,
            f"The fire time {format_distance(fire_at, now=facts.now)} waits in its window until"
            f" {describe_instant(sent_at, facts.schedule.timezone)}.{_unfinished(facts)}",
        )


def _hold_text(facts: Facts, hold: HoldInfo) -> str:
    what = "everything" if hold.owner is None else described_owner(hold.owner)
    who = f" by {hold.actor}" if hold.actor else ""
    since = format_duration(facts.age(hold.created_at))
    reason = f" because of {first_line(hold.reason)!r}" if hold.reason else ""
    until = "" if hold.until_at is None else f", until {hold.until_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{what} has been held for {since}{who}{reason}{until}"


def beat_rules(facts: Facts) -> Iterator[Finding]:
    """Yield why no beat claims the fire times."""
    newest = facts.newest
    if facts.is_finished and (newest is None or newest.status != Status.PENDING):
        return
    living = [beat for beat in facts.beats if beat.is_alive]
    if not living:
        yield _no_beat(facts)
    elif not any(beat.works for beat in living):
        error = next((beat.error for beat in living if beat.error), None)
        because = f": {first_line(error)}" if error else ""
        yield Finding(
            Cause.BEAT_FAILING,
            f"It does not run: beat {living[0].name} is alive but makes no progress{because}.",
            "Fix the cause that the error and beat's log show.",
        )
    elif facts.is_late and facts.outage() is None and all(beat.error for beat in living):
        yield Finding(
            Cause.BEAT_FAILING,
            f"It does not run: the last pass of beat {living[0].name} failed:"
            f" {first_line(living[0].error).rstrip('.')}.",
            "Fix the cause that the error names. Beat then sends the run.",
        )
    claim_at = facts.schedule.next_run_at
    # Without a run there is nothing else to tell.
    if claim_at is not None and (facts.is_overdue or (facts.is_late and newest is None)):
        yield _overdue(facts, facts.age(claim_at))


def _no_beat(facts: Facts) -> Finding:
    last = max(facts.beats, key=lambda beat: beat.seen_at, default=None)
    end = ""
    if last is not None:
        # A beat that was killed did not deregister, so the time of its end is not known.
        verb = "ended" if last.state is NodeState.STOPPED else "was last seen"
        end = f"; the last one {verb} {format_distance(last.seen_at, now=facts.now)}"
    return Finding(
        Cause.NO_BEAT,
        f"It does not run: no beat is alive{end}.",
        "Start one: `celery -A your_app beat`. The log of the last beat shows why it ended.",
    )


def _overdue(facts: Facts, age: timedelta) -> Finding:
    outage = facts.outage()
    late = f"It has been due for {format_duration(age)}"
    if outage is not None:
        return Finding(
            Cause.NOT_PUBLISHED,
            f"{late}: beat cannot publish to {outage.kind} {outage.name!r}: {outage.error}.",
            "Fix the cause that the error names. Beat then sends the run.",
        )
    # A beat that was killed counts as alive until dynbeat_node_timeout.
    seen_at = max(beat.seen_at for beat in facts.beats if beat.is_alive)
    seen = f"; a beat was last seen {format_distance(seen_at, now=facts.now)}"
    return Finding(
        Cause.OVERDUE,
        f"{late}, and no beat has claimed it{seen if facts.age(seen_at) > ON_TIME else ''}.",
        "Read beat's log. If beat has ended, start it: `celery -A your_app beat`. If the beats"
        " work but are too slow, start another one.",
    )
