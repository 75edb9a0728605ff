"""Why a schedule runs or does not run: the cause, in one sentence, and the fix. PURE.

The first rule that applies decides. The order is from what stops every fire time, as in
``planning.obstacles``, to what concerns the newest run:

    quarantined, unreadable, paused, held    the row or a person stops it
    quiet hours, window                      a fire time waits for their end
    no beat, beat without progress, overdue  beat does not claim it
    waits, runs, retries                     the newest run has not ended
    failed, lost, revoked, expired           the newest run ended badly
    finished                                 the schedule has no fire time left
    skipped, ran                             how the newest run ended otherwise

A finished schedule has no future: neither a hold nor a missing beat stops it.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from celery_dynbeat.api.results import HoldInfo, RunInfo
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.owner_limits import setting_of
from celery_dynbeat.common.states import BATCH_ORIGINS, Origin, Status, Wait, was_started
from celery_dynbeat.common.text import (
    counted,
    described_owner,
    first_line,
    format_distance,
    format_duration,
)
from celery_dynbeat.health.checks import release_command
from celery_dynbeat.health.nodes import NodeState
from celery_dynbeat.insights.explain.facts import WAITING, Facts
from celery_dynbeat.insights.explain.runs import (
    ON_TIME,
    delay_reason,
    explain_run,
    planned_delay,
    start_delay,
)
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.obstacles import Obstacle
from celery_dynbeat.planning.plan import Plan, due_at, plan
from celery_dynbeat.planning.upcoming import MAX_CAUGHT_UP
from celery_dynbeat.store.schedules import REFUSED_PREFIX
from celery_dynbeat.triggers.zones import describe_instant


class Cause(StrEnum):
    """Why a schedule ran or did not run. Programs rely on the values."""

    QUARANTINED = "quarantined"
    TRIGGER_UNREADABLE = "trigger_unreadable"
    FINISHED = "finished"
    PAUSED = "paused"
    HELD = "held"
    QUIET_HOURS = "quiet_hours"
    IN_WINDOW = "in_window"
    NO_BEAT = "no_beat"
    BEAT_FAILING = "beat_failing"
    OVERDUE = "overdue"
    NOT_FIRED_YET = "not_fired_yet"
    NOT_PUBLISHED = "not_published"
    WAITS_FOR_PREVIOUS = "waits_for_previous"
    WAITS_FOR_PLACE = "waits_for_place"
    WAITS_FOR_TURN = "waits_for_turn"
    POSTPONED = "postponed"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    TASK_NOT_REGISTERED = "task_not_registered"
    CONTENT_REFUSED = "content_refused"
    WAITS_IN_QUEUE = "waits_in_queue"
    RUNNING = "running"
    WORKER_SILENT = "worker_silent"
    RETRYING = "retrying"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED = "skipped"
    FAILED = "failed"
    LOST = "lost"
    REVOKED = "revoked"
    EXPIRED = "expired"
    RAN_LATE = "ran_late"
    RAN = "ran"


@dataclass(frozen=True, slots=True)
class Finding:
    """The cause, one sentence that states it, and the fix; "" if nothing needs a fix.

    The cause is a Cause, or a PastCause for an instant of the past.
    """

    cause: StrEnum
    sentence: str
    fix: str = ""


_Findings = Iterator[Finding]
#: A command that shows the error and the traceback of a run, and one that runs it again.
_SHOW = "`celery -A your_app dynbeat runs {id}`"
_RERUN = "`celery -A your_app dynbeat rerun {id}`"


def find_cause(facts: Facts) -> Finding:
    """Return the cause that explains the schedule best."""
    return next(finding for rule in _RULES for finding in rule(facts))


def age_text(facts: Facts, run: RunInfo) -> str:
    """Return when the fire time of ``run`` was, as part of a sentence."""
    if facts.age(run.fire_at) < timedelta(seconds=1):
        return "just now"
    return format_distance(run.fire_at, now=facts.now)


def story(facts: Facts, run: RunInfo) -> str:
    """Return what happened to ``run``, as the rest of a sentence."""
    return explain_run(run, now=facts.now, spec=facts.spec)


def _told(facts: Facts, run: RunInfo, what: str = "The run from") -> str:
    """Return what happened to ``run``, as a sentence without its full stop."""
    return f"{what} {age_text(facts, run)} {story(facts, run)}"


def because_of(reason: str | None) -> str:
    """Return the reason that a person gave, as the end of a sentence."""
    line = first_line(reason)
    return f" because of {line!r}" if line else ""


def _unfinished(facts: Facts) -> str:
    """Return a sentence about the newest run if it has not ended, because it may still run."""
    run = facts.newest
    return "" if run is None or run.finished_at is not None else f" {_told(facts, run)}."


def _row_rules(facts: Facts) -> _Findings:
    """Yield the causes in the row itself: quarantine and pause."""
    schedule, error = facts.schedule, first_line(facts.schedule.error)
    # A planned row has an error only here and now: beat leaves a kind of trigger that it does not
    # know to a newer beat.
    if schedule.error is not None and schedule.next_run_at is not None:
        yield Finding(
            Cause.TRIGGER_UNREADABLE,
            f"This version cannot read its trigger or window: {error}.",
            "Upgrade all beats if a newer version wrote it, or give it another one with update.",
        )
    elif schedule.error is not None:
        yield Finding(
            Cause.QUARANTINED,
            f"It does not run: it is quarantined, because {error}.",
            "Correct it with update, which ends the quarantine, or delete it.",
        )
    if not schedule.enabled:
        yield _paused(facts)


def _paused(facts: Facts) -> Finding:
    schedule, pause = facts.schedule, facts.pause
    who = pause.actor if pause and pause.actor else "a caller"
    when = "" if pause is None else f" {format_distance(pause.changed_at, now=facts.now)}"
    reason, because = first_line(schedule.paused_reason), because_of(schedule.paused_reason)
    owner, name = shlex.quote(schedule.owner), shlex.quote(schedule.name)
    scope = f" --owner={owner}" if schedule.owner else ""
    fix = (
        f"`celery -A your_app dynbeat resume{scope} -- {name}` starts it again. Fire times of the"
        " pause are not run again."
    )
    if schedule.managed_by and reason.startswith(REFUSED_PREFIX):
        fix = "Correct the entry of beat_schedule, and restart beat."
    until, end = schedule.paused_until, ""
    if until is not None and until <= facts.now:
        end = " The pause has ended: the next pass of a beat resumes it."
    elif until is not None:
        distance = format_distance(until, now=facts.now)
        end = f" Beat resumes it at {describe_instant(until, schedule.timezone)} ({distance})."
    sentence = f"It does not run: {who} paused it{when}{because}.{end}{_unfinished(facts)}"
    return Finding(Cause.PAUSED, sentence, fix)


def _hold_rules(facts: Facts) -> _Findings:
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


def _hold_text(facts: Facts, hold: HoldInfo) -> str:
    what = "everything" if hold.owner is None else described_owner(hold.owner)
    who = f" by {hold.actor}" if hold.actor else ""
    since = format_duration(facts.age(hold.created_at))
    reason = because_of(hold.reason)
    until = "" if hold.until_at is None else f", until {hold.until_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{what} has been held for {since}{who}{reason}{until}"


def _wait_rules(facts: Facts) -> _Findings:
    """Yield the quiet hours, or the window, for whose end a fire time waits."""
    spec, fire_at, sent_at = facts.spec, facts.next_fire_at, facts.schedule.next_run_at
    if fire_at is None or sent_at is None or not fire_at <= facts.now < sent_at:
        return
    if spec is not None and facts.is_quiet:
        then = f"{_at_the_end(facts, spec, fire_at)}{_unfinished(facts)}"
        sentence = f"It does not run now: {_quiet_text(facts)}. {then}"
        yield Finding(Cause.QUIET_HOURS, sentence, _quiet_fix(facts))
    yield Finding(
        Cause.IN_WINDOW,
        f"The fire time {format_distance(fire_at, now=facts.now)} waits in its window until"
        f" {describe_instant(sent_at, facts.schedule.timezone)}.{_unfinished(facts)}",
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


def _quiet_text(facts: Facts) -> str:
    """Return until when the present quiet time lasts. It is quiet now."""
    quiet = facts.quiet
    assert quiet is not None  # noqa: S101 - it is quiet
    end = describe_instant(quiet.end(facts.now), quiet.windows.zone.key)
    return f"its owner is {quiet.describe(facts.now)} until {end}"


def _quiet_fix(facts: Facts) -> str:
    owner = shlex.quote(facts.schedule.owner)
    return f"`celery -A your_app dynbeat owner -- {owner}` shows the windows."


def _beat_rules(facts: Facts) -> _Findings:
    """Yield why no beat claims the fire times."""
    newest, claim_at = facts.newest, facts.schedule.next_run_at
    if facts.is_finished and (newest is None or newest.status != Status.PENDING):
        return
    living = [beat for beat in facts.beats if beat.is_alive]
    errors = [beat.row.error for beat in living if beat.row.error]
    if not living:
        yield _no_beat(facts)
    elif not any(beat.works for beat in living):
        because = f": {first_line(errors[0])}" if errors else ""
        yield Finding(
            Cause.BEAT_FAILING,
            f"It does not run: beat {living[0].row.name} is alive but makes no progress{because}.",
            "Fix the cause that the error and beat's log show.",
        )
    elif facts.is_late and facts.outage() is None and len(errors) == len(living):
        yield Finding(
            Cause.BEAT_FAILING,
            f"It does not run: the last pass of beat {living[0].row.name} failed:"
            f" {first_line(errors[0]).rstrip('.')}.",
            "Fix the cause that the error names. Beat then sends the run.",
        )
    # Without a run there is nothing else to tell.
    if claim_at is not None and (facts.is_overdue or (facts.is_late and newest is None)):
        yield _overdue(facts, facts.age(claim_at))


def _no_beat(facts: Facts) -> Finding:
    last = max(facts.beats, key=lambda beat: beat.last_seen_at, default=None)
    end = ""
    if last is not None:
        # A beat that was killed did not deregister, so the time of its end is not known.
        verb = "ended" if last.state is NodeState.STOPPED else "was last seen"
        end = f"; the last one {verb} {format_distance(last.last_seen_at, now=facts.now)}"
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
    seen_at = max(beat.last_seen_at for beat in facts.beats if beat.is_alive)
    seen = f"; a beat was last seen {format_distance(seen_at, now=facts.now)}"
    return Finding(
        Cause.OVERDUE,
        f"{late}, and no beat has claimed it{seen if facts.age(seen_at) > ON_TIME else ''}.",
        "Read beat's log. If beat has ended, start it: `celery -A your_app beat`. If the beats"
        " work but are too slow, start another one.",
    )


def _unfinished_rules(facts: Facts) -> _Findings:
    """Yield the state of a run that has not ended, or the fact that there is no run."""
    newest = facts.newest
    if newest is None:
        yield from _skipped_by_call(facts)
        yield _finished(facts) if facts.is_finished else _not_fired_yet(facts)
    elif newest.status == Status.PENDING:
        yield _pending(facts, newest)
    elif newest.status == Status.SENT:
        yield _sent(facts, newest, "It has not run")
    elif newest.status == Status.RUNNING:
        yield _running(facts, newest)
    elif newest.status == Status.RETRYING:
        if facts.is_quiet_for(newest):
            yield _in_quiet(facts, newest)
        fix = f"It starts again by itself. {_SHOW} has the traceback.".format(id=newest.id)
        yield Finding(Cause.RETRYING, f"{_told(facts, newest)}.", fix)


def _finished(facts: Facts) -> Finding:
    schedule = facts.schedule
    if schedule.max_runs is not None and schedule.run_count >= schedule.max_runs:
        why = f"max_runs = {schedule.max_runs} is reached"
    elif schedule.end_at is not None and schedule.end_at <= facts.now:
        why = f"end_at = {schedule.end_at:%Y-%m-%d %H:%M:%S} UTC has passed"
    else:
        why = "its trigger has no fire time left"
    last = "" if facts.newest is None else f"; the last run {story(facts, facts.newest)}"
    return Finding(
        Cause.FINISHED,
        f"It has finished: {why}{last}.",
        "Give it another trigger, end_at or max_runs with update. `run` runs it once.",
    )


def _skipped_by_call(facts: Facts) -> _Findings:
    """Yield that ``skip()`` took out the newest fire time, which has no run in the history yet."""
    last = None if facts.newest is None else facts.newest.fire_at
    for at in sorted(facts.skips, reverse=True):
        if at <= facts.now and (last is None or at > last):
            when = format_distance(at, now=facts.now)
            sentence = f"The fire time {when} was skipped: {first_line(facts.skips[at])}."
            yield Finding(Cause.SKIPPED, sentence)


def _not_fired_yet(facts: Facts) -> Finding:
    at = facts.schedule.next_run_at
    is_skipped = facts.next_fire_at in facts.skips
    when = "" if at is None or is_skipped else f" It runs {format_distance(at, now=facts.now)}."
    return Finding(Cause.NOT_FIRED_YET, f"It has had no fire time yet.{when}")


#: The causes of a run that waits.
_WAITS: Mapping[str, Cause] = {
    Wait.PLACE: Cause.WAITS_FOR_PLACE,
    Wait.HOLD: Cause.HELD,
    Wait.QUIET: Cause.QUIET_HOURS,
    Wait.PREVIOUS: Cause.WAITS_FOR_PREVIOUS,
    Wait.BATCH: Cause.WAITS_FOR_TURN,
    Wait.POSTPONED: Cause.POSTPONED,
}


def _pending(facts: Facts, run: RunInfo) -> Finding:
    """Return for what a pending run waits: the first obstacle, in the order of ``Obstacle``."""
    waits = f"The run from {age_text(facts, run)} has waited for"
    since = format_duration(facts.age(run.created_at))
    previous = _previous(facts, run)
    has_turn = run.waited_for != Wait.BATCH or not run.is_waiting
    standing = {
        Obstacle.QUIET: facts.is_quiet_for(run),
        Obstacle.OVERLAP: bool(previous),
        Obstacle.CAP: facts.cap is not None and has_turn,
    }
    obstacle = next((each for each in Obstacle if standing.get(each)), None)
    if obstacle is Obstacle.QUIET:
        return _in_quiet(facts, run)
    if obstacle is Obstacle.OVERLAP:
        sentence = f"{waits} {since}: the previous run {_blocker(facts, previous[0])}."
        fix = "It starts when the previous run has ended."
        return Finding(Cause.WAITS_FOR_PREVIOUS, sentence, fix)
    if facts.cap is not None and obstacle is Obstacle.CAP:
        owner, key, most = facts.cap
        shared = "" if key == owner else f" with the key {key!r}"
        return Finding(
            Cause.WAITS_FOR_PLACE,
            f"{waits} {since} for a place: {described_owner(owner)} may have"
            f" {counted(most, 'unfinished run')}{shared} ({setting_of('max_running')}).",
            "It starts by itself when a place is free. `celery -A your_app dynbeat owner --"
            f" {shlex.quote(run.owner)}` shows how many runs have a place.",
        )
    if run.is_waiting:
        fix = "It starts by itself when the wait ends."
        return Finding(_WAITS[run.waited_for or ""], f"{_told(facts, run)}.", fix)
    outage = facts.outage()
    why = (
        "no beat has published it"
        if outage is None
        else f"beat cannot publish to {outage.kind} {outage.name!r}: {outage.error}"
    )
    return Finding(
        Cause.NOT_PUBLISHED,
        f"The run from {age_text(facts, run)} was recorded {since} ago, and {why}.",
        "Fix the cause that the error names, or read beat's log. Beat then sends the run.",
    )


def _in_quiet(facts: Facts, run: RunInfo) -> Finding:
    what = "waits for its retry" if run.status == Status.RETRYING else "waits"
    sentence = f"The run from {age_text(facts, run)} {what}: {_quiet_text(facts)}."
    return Finding(Cause.QUIET_HOURS, sentence, _quiet_fix(facts))


def _previous(facts: Facts, run: RunInfo) -> Sequence[RunInfo]:
    """Return the runs for whose end a pending run waits because of ``overlap``.

    Manual runs do not wait.
    """
    others = [each for each in facts.unfinished if each.id != run.id]
    if run.waited_for == Wait.PREVIOUS and run.is_waiting:
        return others
    needs_place = run.origin in BATCH_ORIGINS and run.waited_for == Wait.PLACE
    if needs_place and facts.overlap != "allow":
        return [each for each in others if each.status != Status.PENDING]
    return ()


def _sent(facts: Facts, run: RunInfo, subject: str) -> Finding:
    queue = "its queue" if facts.queue is None else f"queue {facts.queue!r}"
    since = format_duration(facts.age(run.sent_at or run.created_at))
    waits = f"{subject}: its message has waited in {queue} for {since}"
    if not any(worker.is_alive for worker in facts.workers):
        fix = "Start a worker: `celery -A your_app worker`."
        return Finding(Cause.NO_WORKER, f"{waits}, and no worker is alive.", fix)
    if not facts.consumers:
        return Finding(
            Cause.NO_WORKER_FOR_QUEUE,
            f"{waits}, and no living worker consumes this queue.",
            f"Start one: `celery -A your_app worker -Q {facts.queue}`, or change the queue.",
        )
    if not facts.capable:
        return Finding(
            Cause.TASK_NOT_REGISTERED,
            f"{waits}, and no worker of this queue has the task {facts.schedule.task!r}.",
            "Start a worker whose application has the task, or correct the task's name.",
        )
    if facts.refused_content is not None:
        return Finding(
            Cause.CONTENT_REFUSED,
            f"{waits}, or a worker has refused it: accept_content does not contain"
            f" {facts.refused_content}.",
            "Add it to accept_content of the workers, or change the serializer of the schedule.",
        )
    certain = [each for each in facts.capable if each.queues is not None]
    if facts.queue is None or not certain:
        return Finding(
            Cause.WAITS_IN_QUEUE,
            f"{waits}; it is not known whether a living worker consumes it.",
            "`celery -A your_app inspect active_queues` lists the queues of each worker.",
        )
    names = ", ".join(worker.row.name for worker in certain[:3])
    return Finding(
        Cause.WAITS_IN_QUEUE,
        f"{waits}; its workers ({names}) have not started it yet.",
        "They may be busy: start more workers. `celery -A your_app dynbeat status` says whether one"
        " of them is gone.",
    )


def _running(facts: Facts, run: RunInfo) -> Finding:
    worker = next((each for each in facts.workers if each.row.name == run.worker), None)
    if worker is None or worker.is_alive:
        return Finding(Cause.RUNNING, f"{_told(facts, run)}.")
    silent = format_duration(facts.age(worker.last_seen_at))
    return Finding(
        Cause.WORKER_SILENT,
        f"{_told(facts, run)}, and this worker has been silent for {silent}.",
        "Beat marks the run as lost after dynbeat_node_timeout; on_lost decides what follows.",
    )


#: The fixes of a run that ended badly.
_FIXES: Mapping[str, str] = {
    Cause.FAILED: (
        f"Fix the task or its arguments: {_SHOW} has the traceback. {_RERUN} runs it again."
    ),
    Cause.LOST: f"Its worker ended while it ran: read its log. {_RERUN} runs it again.",
    Cause.REVOKED: f"{_RERUN} runs it again if that was not intended.",
    Cause.EXPIRED: f"Raise expires_after, or start more workers. {_RERUN} runs it again.",
}


def _ended_rules(facts: Facts) -> _Findings:
    """Yield how the newest run ended. The schedule has a run."""
    run = facts.newest
    assert run is not None  # noqa: S101 - _unfinished_rules covers None
    yield from _skipped_by_call(facts)
    fix = _FIXES.get(run.status)
    if fix is not None:
        cause = Cause(run.status)
        if (run.error or "").startswith("NotRegistered:"):
            fix = f"Import the task's module where workers start. Then {_RERUN} runs it again."
        sentence, since = f"{_told(facts, run)}.", facts.schedule.failing_since
        if cause is Cause.FAILED and since:
            sentence += f" No run has succeeded for {format_duration(facts.age(since))}."
        yield Finding(cause, sentence, fix.format(id=run.id))
    if facts.is_finished:
        yield _finished(facts)
    yield _skipped(facts, run) if run.status == Status.SKIPPED else _ran(facts, run)


def _skipped(facts: Facts, run: RunInfo) -> Finding:
    if was_started(run.status, run.attempt):
        return Finding(Cause.SKIPPED, f"{_told(facts, run)}.")
    sentence = _told(facts, run, "The fire time")
    if not (run.error or "").startswith("overlap"):
        return Finding(Cause.SKIPPED, f"{sentence}.")
    fix = "End the previous run, shorten the task, or change overlap or max_run_time."
    blockers = [each for each in facts.unfinished if each.id != run.id]
    if blockers:
        sentence += f"; that run {_blocker(facts, blockers[0])}"
        if blockers[0].status in WAITING:
            fix = _sent(facts, blockers[0], "").fix
    return Finding(Cause.SKIPPED_OVERLAP, f"{sentence}.", fix)


def _blocker(facts: Facts, run: RunInfo) -> str:
    """Return the state of the unfinished ``run``, as the end of a sentence."""
    if run.status in WAITING:
        return _sent(facts, run, "has not started").sentence.removesuffix(".")
    return story(facts, run)


_ORIGINS: Mapping[str, str] = {
    Origin.MANUAL: "manual run from",
    Origin.BACKFILL: "backfill of the fire time",
    Origin.RERUN: "rerun of the fire time",
}


def _ran(facts: Facts, run: RunInfo) -> Finding:
    delay, why = start_delay(run), delay_reason(run, spec=facts.spec)
    late = f"{format_duration(max(delay or timedelta(0), timedelta(0)))} late"
    if run.origin != Origin.SCHEDULE or run.wait is not None or delay is None:
        sentence = _told(facts, run, f"The {_ORIGINS.get(run.origin, 'run from')}")
    elif why is None:
        planned = planned_delay(run, facts.spec)
        because = f": {planned}" if planned else ""
        sentence = f"It ran {age_text(facts, run)} as planned, {late}{because}"
    else:
        sentence = f"It ran {age_text(facts, run)}, {late}: {why}"
    if why is None:
        return Finding(Cause.RAN, f"{sentence}.")
    hints = "Read the hints of `celery -A your_app dynbeat status`."
    return Finding(Cause.RAN_LATE, f"{sentence}.", hints)


#: What stands before a fire time, in the order of the list, and then what else can stop it. The
#: window of a schedule waits where its quiet hours do.
_OBSTACLES = {
    Obstacle.STOPPED: _row_rules,
    Obstacle.HOLD: _hold_rules,
    Obstacle.QUIET: _wait_rules,
}
_RULES = (
    *(_OBSTACLES[each] for each in Obstacle if each in _OBSTACLES),
    _beat_rules,
    _unfinished_rules,
    _ended_rules,
)
