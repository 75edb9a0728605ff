"""Rules about the newest run, and about a schedule without another fire time. PURE."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from celery_dynbeat.api import RunInfo
from celery_dynbeat.common.states import BATCH_ORIGINS, Status, Wait, was_started
from celery_dynbeat.common.text import counted, format_distance, format_duration
from celery_dynbeat.db.models import Origin
from celery_dynbeat.insights.explain.facts import WAITING, Facts
from celery_dynbeat.insights.explain.findings import Cause, Finding, age_text, story
from celery_dynbeat.insights.explain.row_rules import quiet_fix, quiet_text
from celery_dynbeat.insights.explain.runs import (
    delay_reason,
    first_line,
    planned_delay,
    start_delay,
)
from celery_dynbeat.planning.obstacles import Obstacle

_ORIGINS: Mapping[str, str] = {
    Origin.MANUAL: "manual run from",
    Origin.BACKFILL: "backfill of the fire time",
    Origin.RERUN: "rerun of the fire time",
}
_WAITS: Mapping[str, Cause] = {
    Wait.PLACE: Cause.WAITS_FOR_PLACE,
    Wait.HOLD: Cause.HELD,
    Wait.QUIET: Cause.QUIET_HOURS,
    Wait.PREVIOUS: Cause.WAITS_FOR_PREVIOUS,
    Wait.BATCH: Cause.WAITS_FOR_TURN,
    Wait.POSTPONED: Cause.POSTPONED,
}
#: A command that shows the error and the traceback of a run, and one that runs it again.
_SHOW = "`celery -A your_app dynbeat show-run {id}`"
_RERUN = "`celery -A your_app dynbeat rerun {id}`"
_ENDINGS = {
    Status.FAILED: (
        Cause.FAILED,
        f"Fix the task or its arguments: {_SHOW} has the traceback. {_RERUN} runs it again.",
    ),
    Status.LOST: (
        Cause.LOST,
        f"Its worker ended while it ran: read its log. {_RERUN} runs it again.",
    ),
    Status.REVOKED: (Cause.REVOKED, f"{_RERUN} runs it again if that was not intended."),
    Status.EXPIRED: (
        Cause.EXPIRED,
        f"Raise expires_after, or start more workers. {_RERUN} runs it again.",
    ),
}


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


def unfinished_rules(facts: Facts) -> Iterator[Finding]:
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
        yield Finding(
            Cause.RETRYING,
            f"The run from {age_text(facts, newest)} {story(facts, newest)}.",
            f"It starts again by itself. {_SHOW} has the traceback.".format(id=newest.id),
        )


def _skipped_by_call(facts: Facts) -> Iterator[Finding]:
    """Yield that ``skip()`` took out the newest fire time, which has no run in the history yet."""
    last = None if facts.newest is None else facts.newest.scheduled_for
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


def _in_quiet(facts: Facts, run: RunInfo) -> Finding:
    what = "waits for its retry" if run.status == Status.RETRYING else "waits"
    return Finding(
        Cause.QUIET_HOURS,
        f"The run from {age_text(facts, run)} {what}: {quiet_text(facts)}.",
        quiet_fix(facts),
    )


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


def _obstacle(facts: Facts, run: RunInfo) -> Obstacle | None:
    """Return the first obstacle that stops a run which waits, apart from a hold."""
    has_turn = run.waited_for != Wait.BATCH or not run.is_waiting
    standing = {
        Obstacle.QUIET: facts.is_quiet_for(run),
        Obstacle.OVERLAP: bool(_previous(facts, run)),
        Obstacle.CAP: facts.cap is not None and has_turn,
    }
    return next((each for each in Obstacle if standing.get(each)), None)


def _pending(facts: Facts, run: RunInfo) -> Finding:
    since = format_duration(facts.age(run.created_at))
    obstacle = _obstacle(facts, run)
    if obstacle is Obstacle.QUIET:
        return _in_quiet(facts, run)
    if obstacle is Obstacle.OVERLAP:
        return Finding(
            Cause.WAITS_FOR_PREVIOUS,
            f"The run from {age_text(facts, run)} has waited for {since}: the previous run"
            f" {_blocker(facts, _previous(facts, run)[0])}.",
            "It starts when the previous run has ended.",
        )
    if obstacle is Obstacle.CAP and facts.cap is not None:
        limit, key = facts.cap
        shared = "" if key == limit.owner else f" with the key {key!r}"
        return Finding(
            Cause.WAITS_FOR_PLACE,
            f"The run from {age_text(facts, run)} has waited for {since} for a place:"
            f" {limit.whose} may have {counted(limit.value, 'unfinished run')}{shared}"
            f" ({limit.setting}).",
            "It starts by itself when a place is free. `usage` shows the places in use.",
        )
    if run.is_waiting:
        return Finding(
            _WAITS[run.waited_for or ""],
            f"The run from {age_text(facts, run)} {story(facts, run)}.",
            "It starts by itself when the wait ends.",
        )
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


def _sent(facts: Facts, run: RunInfo, subject: str) -> Finding:
    queue = "its queue" if facts.queue is None else f"queue {facts.queue!r}"
    since = format_duration(facts.age(run.sent_at or run.created_at))
    waits = f"{subject}: its message has waited in {queue} for {since}"
    living = [worker for worker in facts.workers if worker.is_alive]
    if not living:
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
    names = ", ".join(worker.name for worker in certain[:3])
    return Finding(
        Cause.WAITS_IN_QUEUE,
        f"{waits}; its workers ({names}) have not started it yet.",
        "They may be busy: start more workers. `celery -A your_app dynbeat status` says whether one"
        " of them is gone.",
    )


def _running(facts: Facts, run: RunInfo) -> Finding:
    worker = next((each for each in facts.workers if each.name == run.worker), None)
    if worker is not None and not worker.is_alive:
        return Finding(
            Cause.WORKER_SILENT,
            f"The run from {age_text(facts, run)} {story(facts, run)}, and this worker has been"
            f" silent for {format_duration(facts.age(worker.seen_at))}.",
            "Beat marks the run as lost after dynbeat_node_timeout; on_lost decides what follows.",
        )
    return Finding(Cause.RUNNING, f"The run from {age_text(facts, run)} {story(facts, run)}.")


def ended_rules(facts: Facts) -> Iterator[Finding]:
    """Yield how the newest run ended. The schedule has a run."""
    run = facts.newest
    assert run is not None  # noqa: S101 - unfinished_rules covers None
    yield from _skipped_by_call(facts)
    if run.status in _ENDINGS:
        cause, fix = _ENDINGS[Status(run.status)]
        if (run.error or "").startswith("NotRegistered:"):
            fix = f"Import the task's module where workers start. Then {_RERUN} runs it again."
        since = facts.schedule.failing_since
        streak = f" No run has succeeded for {format_duration(facts.age(since))}." if since else ""
        sentence = f"The run from {age_text(facts, run)} {story(facts, run)}."
        sentence += streak if cause is Cause.FAILED else ""
        yield Finding(cause, sentence, fix.format(id=run.id))
    if facts.is_finished:
        yield _finished(facts)
    yield _skipped(facts, run) if run.status == Status.SKIPPED else _ran(facts, run)


def _skipped(facts: Facts, run: RunInfo) -> Finding:
    if was_started(run.status, run.attempt):
        return Finding(Cause.SKIPPED, f"The run from {age_text(facts, run)} {story(facts, run)}.")
    sentence = f"The fire time {age_text(facts, run)} {story(facts, run)}"
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


def _ran(facts: Facts, run: RunInfo) -> Finding:
    delay = start_delay(run)
    why = delay_reason(run, spec=facts.spec)
    shown = f"{format_duration(max(delay or timedelta(0), timedelta(0)))} late"
    when = age_text(facts, run)
    fix = "" if why is None else "Read the hints of `celery -A your_app dynbeat status`."
    cause = Cause.RAN if why is None else Cause.RAN_LATE
    if run.origin != Origin.SCHEDULE or run.wait is not None or delay is None:
        which = _ORIGINS.get(run.origin, "run from")
        sentence = f"The {which} {when} {story(facts, run)}."
    elif why is None:
        planned = planned_delay(run, facts.spec)
        because = f": {planned}" if planned else ""
        sentence = f"It ran {when} as planned, {shown}{because}."
    else:
        sentence = f"It ran {when}, {shown}: {why}."
    return Finding(cause, sentence, fix)
