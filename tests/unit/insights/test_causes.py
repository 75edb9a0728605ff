"""The first sentence names the right cause: facts in, one finding out."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from celery_dynbeat import ChangeInfo, Every, HoldInfo, QuietHours, RunInfo, ScheduleInfo
from celery_dynbeat.common.owner_limits import Cap
from celery_dynbeat.common.quiet_rule import QuietRule
from celery_dynbeat.db.models import Node
from celery_dynbeat.health.nodes import NodeState, SeenNode
from celery_dynbeat.insights.explain.causes import Cause, find_cause
from celery_dynbeat.insights.explain.facts import Facts
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.quiet_hours import quiet_of, resolved
from celery_dynbeat.store.schedules import REFUSED_PREFIX
from tests.support.applications import START

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def seen(name, state=NodeState.WORKING, **fields):
    """Return a node in a state. ``queues`` and ``tasks`` are JSON."""
    return SeenNode(Node(name=name, **{"seen_at": START, **fields}), state)


def worker(state=NodeState.WORKING, **fields):
    return seen("celery@a", state, **{"queues": '["celery"]', "tasks": '["t"]', **fields})


BEAT, WORKER = seen("beat@a"), worker()


def schedule(**fields):
    defaults = dict.fromkeys(ScheduleInfo.__slots__)
    return ScheduleInfo(
        **{
            **defaults,
            "id": 1,
            "owner": "user:42",
            "name": "digest",
            "task": "t",
            "args": [],
            "kwargs": {},
            "options": {},
            "trigger": Every(60),
            "timezone": "UTC",
            "enabled": True,
            "run_count": 0,
            "next_run_at": START + HOUR,
            **fields,
        }
    )


def run(status="succeeded", *, ago=HOUR, **fields):
    """Return a run whose steps took a second each; it has ended if its status says so."""
    at = START - ago
    steps = {"sent_at": at + SECOND, "started_at": at + 2 * SECOND, "finished_at": at + 3 * SECOND}
    missing = {
        "pending": ["sent_at", "started_at", "finished_at"],
        "sent": ["started_at", "finished_at"],
        "running": ["finished_at"],
        "retrying": ["finished_at"],
        "skipped": ["sent_at", "started_at"],
        "expired": ["started_at"],
    }.get(status, [])
    return RunInfo(
        **{
            **dict.fromkeys(RunInfo.__slots__),
            "id": f"{status}-{ago}",
            "schedule_id": 1,
            "owner": "user:42",
            "name": "digest",
            "task": "t",
            "fire_at": at,
            "fire_count": 1,
            "status": status,
            "origin": "schedule",
            "attempt": 0 if status in {"skipped", "pending", "sent"} else 1,
            "created_at": at,
            "worker": "celery@a",
            **steps,
            **dict.fromkeys(missing),
            **fields,
        }
    )


def facts(**given):
    runs = given.setdefault("runs", [])
    unfinished = [each for each in runs if each.finished_at is None]
    defaults = {
        "now": START,
        "schedule": schedule(),
        "is_overdue": False,
        "queue": "celery",
        "beats": [BEAT],
        "workers": [WORKER],
        "unfinished": unfinished[::-1],
    }
    return Facts(**{**defaults, **given})


HOLD = HoldInfo(
    owner=None, actor="alice", reason="migration", created_at=START - HOUR, until_at=None
)
PAUSE = ChangeInfo(
    **{
        **dict.fromkeys(ChangeInfo.__slots__),
        "action": "pause",
        "actor": "alice",
        "changed_at": START - 3 * HOUR,
    }
)
GONE = worker(NodeState.GONE, seen_at=START - 5 * MINUTE)
OTHER_QUEUE = worker(queues='["mail"]')
OUTAGE = json.dumps(
    [
        {
            "kind": "queue",
            "name": "celery",
            "since": "2026-11-21T08:00:00+00:00",
            "error": "(403) ACCESS_REFUSED",
        }
    ]
)
OVERLAP = "overlap: the previous run had not ended"


def spec(**fields):
    return ScheduleSpec(Every(HOUR, anchor=START), **fields)


def quiet(window):
    rule = QuietRule([QuietHours.from_text(window)])
    return spec(quiet=quiet_of(resolved([rule], timezone="UTC")))


NIGHT = quiet("08:30-10:00")

CASES = [
    (
        {
            "schedule": schedule(
                error="InvalidTriggerError: minute '99'\ntraceback", next_run_at=None
            )
        },
        Cause.QUARANTINED,
        "It does not run: it is quarantined, because InvalidTriggerError: minute '99'.",
    ),
    (
        {"schedule": schedule(finished_at=START, max_runs=3, run_count=3), "runs": [run()]},
        Cause.FINISHED,
        (
            "It has finished: max_runs = 3 is reached; the last run started 2 s late on worker"
            " celery@a and succeeded after 1 s."
        ),
    ),
    (
        {
            "schedule": schedule(enabled=False, paused_reason="holiday"),
            "pause": PAUSE,
        },
        Cause.PAUSED,
        "It does not run: alice paused it 3 h ago because of 'holiday'.",
    ),
    (
        {"schedule": schedule(enabled=False, paused_until=START + HOUR)},
        Cause.PAUSED,
        (
            "It does not run: a caller paused it. Beat resumes it at 2026-11-21 10:00 UTC"
            " (in 60 min)."
        ),
    ),
    (
        {"schedule": schedule(enabled=False)},
        Cause.PAUSED,
        "It does not run: a caller paused it.",
    ),
    (
        {"holds": [HOLD]},
        Cause.HELD,
        "It does not run: everything has been held for 60 min by alice because of 'migration'.",
    ),
    (
        {"spec": NIGHT, "next_fire_at": START, "runs": [run()]},
        Cause.QUIET_HOURS,
        (
            "It does not run now: its owner is in quiet hours until 2026-11-21 10:00 UTC. The fire"
            " time in 60 min is sent then, in place of 1 other fire time."
        ),
    ),
    (
        {
            "spec": NIGHT,
            "runs": [run("pending", ago=HOUR, waited_for="place")],
            "ignores_quiet": True,
        },
        Cause.WAITS_FOR_PLACE,
        "The run from 60 min ago waits for a place, and was recorded 60 min ago.",
    ),
    (
        {
            "schedule": schedule(next_run_at=START + 20 * MINUTE),
            "next_fire_at": START,
            "runs": [run()],
        },
        Cause.IN_WINDOW,
        "The fire time now waits in its window until 2026-11-21 09:20 UTC.",
    ),
    ({"beats": []}, Cause.NO_BEAT, "It does not run: no beat is alive."),
    (
        {"beats": [seen("beat@a", NodeState.STOPPED, seen_at=START - 2 * HOUR)]},
        Cause.NO_BEAT,
        "It does not run: no beat is alive; the last one ended 2 h ago.",
    ),
    (
        {"beats": [seen("beat@a", NodeState.NO_PROGRESS, error="timeout")]},
        Cause.BEAT_FAILING,
        "It does not run: beat beat@a is alive but makes no progress: timeout.",
    ),
    (
        {"is_overdue": True, "schedule": schedule(next_run_at=START - 5 * MINUTE)},
        Cause.OVERDUE,
        "It has been due for 5 min, and no beat has claimed it.",
    ),
    (
        {
            "is_overdue": True,
            "schedule": schedule(next_run_at=START - 5 * MINUTE),
            "beats": [seen("beat@a", outages=OUTAGE)],
        },
        Cause.NOT_PUBLISHED,
        "It has been due for 5 min: beat cannot publish to queue 'celery': (403) ACCESS_REFUSED.",
    ),
    ({}, Cause.NOT_FIRED_YET, "It has had no fire time yet. It runs in 60 min."),
    (
        {"skips": {START - MINUTE: "skipped by alice", START + HOUR: "skipped by bob"}},
        Cause.SKIPPED,
        "The fire time 60 s ago was skipped: skipped by alice.",
    ),
    (
        {
            "runs": [
                run("pending", ago=MINUTE, waited_for="previous"),
                run("running", ago=2 * MINUTE),
            ],
        },
        Cause.WAITS_FOR_PREVIOUS,
        (
            "The run from 60 s ago has waited for 60 s: the previous run has been running for 118 s"
            " on worker celery@a."
        ),
    ),
    (
        {
            "runs": [run("pending", ago=MINUTE)],
            "cap": Cap("user:42", "user:42", 5),
        },
        Cause.WAITS_FOR_PLACE,
        (
            "The run from 60 s ago has waited for 60 s for a place: owner 'user:42' may have 5"
            " unfinished runs (dynbeat_owner_limits: max_running)."
        ),
    ),
    (
        {"runs": [run("pending", origin="backfill", waited_for="batch")]},
        Cause.WAITS_FOR_TURN,
        "The run from 60 min ago waits for its turn in its batch, and was recorded 60 min ago.",
    ),
    (
        {"runs": [run("pending", waited_for="postponed", retry_at=START + HOUR, attempt=1)]},
        Cause.POSTPONED,
        (
            "The run from 60 min ago waits until 2026-11-21 10:00:00 UTC because its task"
            " postponed it after 1 attempt, and was recorded 60 min ago."
        ),
    ),
    (
        {"runs": [run("sent")], "workers": [GONE]},
        Cause.NO_WORKER,
        (
            "It has not run: its message has waited in queue 'celery' for 60 min, and no worker is"
            " alive."
        ),
    ),
    (
        {"runs": [run("sent")], "workers": [OTHER_QUEUE, GONE]},
        Cause.NO_WORKER_FOR_QUEUE,
        (
            "It has not run: its message has waited in queue 'celery' for 60 min, and no living"
            " worker consumes this queue."
        ),
    ),
    (
        {"runs": [run("sent")], "workers": [worker(tasks='["u"]')]},
        Cause.TASK_NOT_REGISTERED,
        (
            "It has not run: its message has waited in queue 'celery' for 60 min, and no worker of"
            " this queue has the task 't'."
        ),
    ),
    (
        {"runs": [run("sent")], "refused_content": "application/x-python-serialize"},
        Cause.CONTENT_REFUSED,
        (
            "It has not run: its message has waited in queue 'celery' for 60 min, or a worker has"
            " refused it: accept_content does not contain application/x-python-serialize."
        ),
    ),
    (
        {"runs": [run("sent")], "queue": None},
        Cause.WAITS_IN_QUEUE,
        (
            "It has not run: its message has waited in its queue for 60 min; it is not known"
            " whether a living worker consumes it."
        ),
    ),
    (
        {
            "schedule": schedule(
                error="InvalidTriggerError: unknown kind", trigger=None, next_run_at=START
            )
        },
        Cause.TRIGGER_UNREADABLE,
        "This version cannot read its trigger or window: InvalidTriggerError: unknown kind.",
    ),
    (
        {"runs": [run("pending", ago=MINUTE, waited_for="place")]},
        Cause.WAITS_FOR_PLACE,
        "The run from 60 s ago waits for a place, and was recorded 60 s ago.",
    ),
    (
        {"runs": [run("pending", ago=MINUTE, waited_for="hold")]},
        Cause.HELD,
        "The run from 60 s ago waits for the end of a hold, and was recorded 60 s ago.",
    ),
    (
        {
            "runs": [
                run(
                    origin="rerun",
                    created_at=START - MINUTE,
                    sent_at=START - MINUTE,
                    started_at=START - MINUTE,
                    finished_at=START,
                )
            ],
        },
        Cause.RAN,
        (
            "The rerun of the fire time 60 min ago started 0 ms late on worker celery@a and"
            " succeeded after 60 s."
        ),
    ),
    (
        {"runs": [run("running")]},
        Cause.RUNNING,
        "The run from 60 min ago has been running for 60 min on worker celery@a.",
    ),
    (
        {"runs": [run("running")], "workers": [GONE]},
        Cause.WORKER_SILENT,
        (
            "The run from 60 min ago has been running for 60 min on worker celery@a, and this"
            " worker has been silent for 5 min."
        ),
    ),
    (
        {"runs": [run("retrying", error="ValueError: x")]},
        Cause.RETRYING,
        "The run from 60 min ago failed and waits for its retry: ValueError: x.",
    ),
    (
        {"runs": [run("skipped", ago=MINUTE, error=OVERLAP), run("running", ago=2 * MINUTE)]},
        Cause.SKIPPED_OVERLAP,
        (
            "The fire time 60 s ago was skipped: overlap: the previous run had not ended; that run"
            " has been running for 118 s on worker celery@a."
        ),
    ),
    (
        {"runs": [run("skipped", attempt=1, error="no news", started_at=START - HOUR)]},
        Cause.SKIPPED,
        (
            "The run from 60 min ago started 0 ms late on worker celery@a and skipped itself after"
            " 3 s: no news."
        ),
    ),
    (
        {
            "runs": [run("failed", error="ValueError: x\nmore")],
            "schedule": schedule(failing_since=START - 3 * HOUR),
        },
        Cause.FAILED,
        (
            "The run from 60 min ago started 2 s late on worker celery@a and failed after 1 s:"
            " ValueError: x. No run has succeeded for 3 h."
        ),
    ),
    (
        {"runs": [run("lost", error="worker celery@a is gone")]},
        Cause.LOST,
        (
            "The run from 60 min ago started 2 s late on worker celery@a and was lost after 1 s:"
            " worker celery@a is gone."
        ),
    ),
    (
        {"runs": [run("expired", error="not started within expires_after")]},
        Cause.EXPIRED,
        "The run from 60 min ago expired before it started: not started within expires_after.",
    ),
    ({"runs": [run()]}, Cause.RAN, "It ran 60 min ago as planned, 2 s late."),
    (
        {"runs": [run(started_at=START - 50 * MINUTE, finished_at=START - 49 * MINUTE)]},
        Cause.RAN_LATE,
        "It ran 60 min ago, 10 min late: its message waited 10 min in the queue.",
    ),
    (
        {"runs": [run(started_at=START - 16.8 * MINUTE)], "spec": spec(window="100%", key="k")},
        Cause.RAN,
        "It ran 60 min ago as planned, 43 min late: its window delayed it by 43 min.",
    ),
    (
        {"spec": NIGHT._replace(catch_up="all"), "next_fire_at": START, "runs": [run()]},
        Cause.QUIET_HOURS,
        (
            "It does not run now: its owner is in quiet hours until 2026-11-21 10:00 UTC. Then 2"
            " fire times are sent, the last one in 60 min."
        ),
    ),
    (
        {
            "beats": [seen("beat@a", error="ConnectionError: refused.")],
            "schedule": schedule(next_run_at=START - 6 * SECOND),
            "runs": [run()],
        },
        Cause.BEAT_FAILING,
        "It does not run: the last pass of beat beat@a failed: ConnectionError: refused.",
    ),
    (
        {"runs": [run("pending", ago=MINUTE)], "beats": [seen("beat@a", outages=OUTAGE)]},
        Cause.NOT_PUBLISHED,
        (
            "The run from 60 s ago was recorded 60 s ago, and beat cannot publish to queue"
            " 'celery': (403) ACCESS_REFUSED."
        ),
    ),
    (
        {
            "runs": [
                run("pending", ago=MINUTE, origin="backfill", waited_for="place"),
                run("running", ago=2 * MINUTE),
            ],
            "schedule": schedule(overlap="skip"),
            "cap": Cap("user:42", "user:42", 5),
        },
        Cause.WAITS_FOR_PREVIOUS,
        (
            "The run from 60 s ago has waited for 60 s: the previous run has been running for 118 s"
            " on worker celery@a."
        ),
    ),
    (
        {
            "runs": [run("skipped", ago=MINUTE, error=OVERLAP), run("sent", ago=2 * MINUTE)],
            "workers": [OTHER_QUEUE],
        },
        Cause.SKIPPED_OVERLAP,
        (
            "The fire time 60 s ago was skipped: overlap: the previous run had not ended; that run"
            " has not started: its message has waited in queue 'celery' for 119 s, and no living"
            " worker consumes this queue."
        ),
    ),
    (
        {
            "runs": [
                run(
                    waited_for="place",
                    ready_at=START - 48 * MINUTE,
                    sent_at=START - 48 * MINUTE,
                    started_at=START - 48 * MINUTE + SECOND,
                    finished_at=START - 47 * MINUTE,
                )
            ]
        },
        Cause.RAN,
        (
            "The run from 60 min ago waited 12 min for a place, started 1 s late on worker"
            " celery@a and succeeded after 59 s."
        ),
    ),
    (
        {
            "runs": [
                run(
                    attempt=3,
                    started_at=START - 30 * MINUTE,
                    finished_at=START - 29 * MINUTE,
                    earlier_errors=("attempt 2, 2026-11-21T08:29:00Z: ValueError: no",),
                )
            ]
        },
        Cause.RAN,
        (
            "The run from 60 min ago started attempt 3 on worker celery@a and succeeded after"
            " 60 s (attempt 2, 2026-11-21T08:29:00Z: ValueError: no)."
        ),
    ),
    (
        {
            "runs": [
                run(
                    created_at=START - 30 * MINUTE,
                    sent_at=START - 30 * MINUTE,
                    started_at=START - 30 * MINUTE,
                )
            ]
        },
        Cause.RAN_LATE,
        "It ran 60 min ago, 30 min late: no beat claimed it for 30 min, or it was held.",
    ),
    (
        {
            "runs": [run(sent_at=START - 40 * MINUTE, started_at=START - 40 * MINUTE)],
        },
        Cause.RAN_LATE,
        (
            "It ran 60 min ago, 20 min late: no beat published it for 20 min: none ran, or the"
            " broker refused it."
        ),
    ),
    (
        {
            "runs": [run("pending", ago=MINUTE, origin="manual"), run("running", ago=2 * MINUTE)],
            "schedule": schedule(overlap="buffer_one"),
        },
        Cause.NOT_PUBLISHED,
        "The run from 60 s ago was recorded 60 s ago, and no beat has published it.",
    ),
]


@pytest.mark.parametrize(
    ("given", "cause", "sentence"), CASES, ids=[f"{n}-{case[1]}" for n, case in enumerate(CASES)]
)
def test_the_sentence_names_the_cause(given, cause, sentence):
    found = find_cause(facts(**given))

    assert (found.cause, found.sentence) == (cause, sentence)


def test_a_run_that_was_sent_a_moment_ago_does_not_hide_how_the_one_before_ended():
    young, failed = run("sent", ago=2 * SECOND), run("failed", ago=MINUTE, error="x")

    assert find_cause(facts(runs=[young, failed])).cause == Cause.FAILED
    assert find_cause(facts(runs=[young])).cause == Cause.WAITS_IN_QUEUE
    assert find_cause(facts(runs=[run("sent", ago=MINUTE), failed])).cause == Cause.WAITS_IN_QUEUE


def test_each_cause_has_a_case():
    assert {cause for _, cause, _ in CASES} | {Cause.REVOKED} == set(Cause)


def test_what_stops_every_fire_time_comes_before_what_concerns_one_run():
    everything = {
        "schedule": schedule(enabled=False, error="damaged", next_run_at=None),
        "holds": [HOLD],
        "beats": [],
        "runs": [run("failed", error="x")],
    }

    assert find_cause(facts(**everything)).cause == Cause.QUARANTINED
    everything["schedule"] = schedule(enabled=False)
    assert find_cause(facts(**everything)).cause == Cause.PAUSED
    everything["schedule"] = schedule()
    assert find_cause(facts(**everything)).cause == Cause.HELD
    everything["holds"] = []
    assert find_cause(facts(**everything)).cause == Cause.NO_BEAT
    everything["beats"] = [BEAT]
    assert find_cause(facts(**everything)).cause == Cause.FAILED


def test_a_refused_entry_is_corrected_in_beat_schedule():
    reason = f"{REFUSED_PREFIX}it has no 'task'"
    refused = schedule(enabled=False, paused_reason=reason, managed_by="config")

    assert find_cause(facts(schedule=refused)).fix == (
        "Correct the entry of beat_schedule, and restart beat."
    )


@pytest.mark.parametrize(
    ("owner", "option"),
    [(None, "--all-owners"), ("user:42", "--owner user:42"), ("a b", "--owner 'a b'")],
    ids=["everything", "an owner", "an owner with a space"],
)
def test_the_fix_of_a_hold_is_a_command_that_ends_it(owner, option):
    found = find_cause(facts(holds=[replace(HOLD, owner=owner)]))

    assert found.fix.startswith(
        f"End the hold: `celery -A your_app dynbeat hold --release {option}`."
    )


def test_the_fix_of_an_unregistered_task_is_its_import():
    failed = run("failed", started_at=None, error="NotRegistered: t")

    fix = find_cause(facts(runs=[failed])).fix

    assert fix == (
        "Import the task's module where workers start. Then `celery -A your_app dynbeat rerun"
        f" {failed.id}` runs it again."
    )


@pytest.mark.parametrize("status", ["failed", "lost", "revoked", "expired"])
def test_the_fix_of_an_ended_run_is_a_command_that_runs_it_again(status):
    ended = run(status)

    fix = find_cause(facts(runs=[ended])).fix

    assert f"`celery -A your_app dynbeat rerun {ended.id}` runs it again" in fix
