"""A duty that fails stops neither a pass nor another duty, and is reported."""

import json
import os
from datetime import timedelta
from functools import partial

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from sqlalchemy.exc import DBAPIError

from celery_dynbeat.beat import duties, pruning
from celery_dynbeat.broker import outages
from celery_dynbeat.cli import dynbeat as commands
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.store import changes, nodes, runs
from celery_dynbeat.telemetry import events, subscribe, unsubscribe
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, execute
from tests.support.ended_runs import end, start
from tests.support.refusals import execute_ddl, refuse
from tests.support.suites import each_database

SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)


@pytest.fixture
def failed():
    """Give the list that grows with the duties that fail."""
    seen = []
    subscribe(seen.append, events.DutyFailed, key="test")
    yield seen
    unsubscribe("test", events.DutyFailed)


def report_of(beat):
    return beat._dispatcher.report()


def pass_minutes(clock, beat, number):
    for _ in range(number):
        clock.advance(MINUTE)
        beat.run_until_idle()


def with_foreign_key(dynbeat):
    kinds = {"sqlite": "VARCHAR(36)", "postgresql": "uuid"}
    dialect = dynbeat.context.database.engine.dialect.name
    kind = kinds.get(dialect, "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin")
    reference = "FOREIGN KEY (run_id) REFERENCES dynbeat_run (id)"
    execute_ddl(
        dynbeat,
        f"CREATE TABLE report (run_id {kind} NOT NULL, {reference})",
        "INSERT INTO report SELECT id FROM dynbeat_run WHERE finished_at IS NOT NULL",
    )


def with_trigger(dynbeat):
    refuse(dynbeat, action="DELETE", table="dynbeat_run", when="OLD.name <> ''")


def run_of(dynbeat, run_id):
    return dynbeat.context.database.read(partial(runs.get, run_id=run_id))


@pytest.mark.parametrize("refusing", [with_foreign_key, with_trigger])
@each_database
def test_a_refused_delete_of_a_prune_stops_neither_fire_times_nor_the_rescue(
    dynbeat, mine, clock, beat, sent, failed, refusing
):
    mine.create("old", task="t", trigger=MINUTELY)
    pass_minutes(clock, beat, 3)
    for run in list(sent):
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "succeeded")
    refusing(dynbeat)
    clock.advance(dynbeat.context.settings.history_retention + DAY)
    beat.run_until_idle()
    killed = sent[-1].run_id
    start(dynbeat, killed)
    before = len(sent)

    pass_minutes(clock, beat, 5)

    assert len(sent) - before == 5
    assert run_of(dynbeat, killed).status == "lost"
    assert {each.duty for each in failed} == {"prune runs"}
    assert [(each.kind, each.name) for each in report_of(beat)] == [("duty", "prune runs")]


@each_database
def test_a_run_that_cannot_be_deleted_does_not_keep_the_others(
    dynbeat, mine, clock, beat, sent, failed, monkeypatch
):
    monkeypatch.setattr(pruning, "BATCH_SIZE", 3)
    mine.create("old", task="t", trigger=MINUTELY)
    pass_minutes(clock, beat, 8)
    for run in list(sent):
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "succeeded")
    # PostgreSQL's ids are no texts.
    kept = sent[1].fire_at
    execute(dynbeat, "UPDATE dynbeat_run SET note = 'kept' WHERE fire_at = :at", at=kept)
    refuse(dynbeat, action="DELETE", table="dynbeat_run", when="OLD.note = 'kept'")
    mine.pause("old")
    clock.advance(dynbeat.context.settings.history_retention + DAY)
    beat.run_until_idle()
    clock.advance(MINUTE)

    # A batch, a pause after the failure, and the others.
    for _ in range(5):
        beat.run_until_idle()
        clock.advance(2 * SECOND)

    # The run of the last fire time stays at any age.
    left = [run.fire_at for run in mine.runs("old")]
    assert left == [sent[-1].fire_at, kept]
    assert [(each.duty, each.failures) for each in failed] == [("prune runs", 1)]


@each_database
def test_changes_that_cannot_be_deleted_do_not_keep_the_others(
    dynbeat, mine, clock, beat, failed, monkeypatch
):
    monkeypatch.setattr(pruning, "BATCH_SIZE", 3)
    mine.create("old", task="t", trigger=MINUTELY)
    for number in range(8):
        mine.update("old", description=f"{number}")
    mine.pause("old")
    *_, last, middle, first, _ = [each.id for each in mine.changes()]
    refused = f"OLD.id BETWEEN {first} AND {last}"
    refuse(dynbeat, action="DELETE", table="dynbeat_change", when=refused)
    clock.advance(dynbeat.context.settings.audit_retention + DAY)
    beat.run_until_idle()
    clock.advance(MINUTE)

    for _ in range(5):
        beat.run_until_idle()
        clock.advance(2 * SECOND)

    assert [each.id for each in mine.changes()] == [last, middle, first]
    assert [(each.duty, each.failures) for each in failed] == [("prune changes", 1)]


@each_database
def test_the_command_deletes_the_rows_around_those_that_cannot_be_deleted(
    dynbeat, mine, clock, beat, sent, monkeypatch
):
    monkeypatch.setattr(pruning, "BATCH_SIZE", 3)
    mine.create("old", task="t", trigger=MINUTELY)
    pass_minutes(clock, beat, 8)
    for run in list(sent):
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "succeeded")
    kept = sent[1].fire_at
    execute(dynbeat, "UPDATE dynbeat_run SET note = 'kept' WHERE fire_at = :at", at=kept)
    refuse(dynbeat, action="DELETE", table="dynbeat_run", when="OLD.note = 'kept'")
    mine.pause("old")
    clock.advance(dynbeat.context.settings.audit_retention + DAY)

    context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
    result = CliRunner().invoke(commands, ["prune", "--yes", "--json"], obj=context)

    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["ok"], report["deleted"], len(mine.runs("old"))) == (False, 6, 2)
    assert "refused" in report["refused"]


def test_a_duty_that_fails_waits_longer_after_each_failure_and_recovers(
    clock, beat, failed, monkeypatch
):
    def refused(*_, **__):
        raise ValueError("no such table")

    monkeypatch.setattr(changes, "keys_before", refused)
    beat.run_until_idle()
    clock.advance(MINUTE)
    beat.run_until_idle()
    for pause in (1, 2, 4, 8):
        beat.tick()
        clock.advance(SECOND * pause)
        beat.tick()

    assert [each.retry_seconds for each in failed] == [1, 2, 4, 8, 16]
    assert [each.failures for each in failed] == [1, 2, 3, 4, 5]

    monkeypatch.undo()
    clock.advance(duties.MAX_PAUSE)
    beat.run_until_idle()
    assert report_of(beat) == []


def test_status_warns_of_a_duty_that_fails(dynbeat, clock):
    def work(_now):
        raise ValueError("no such table")

    duty = duties.Duty(dynbeat.context.database, "rescue", work)
    duty.run(clock.now())
    report = outages.Outages(clock.now).report(duties.failing([duty]))
    heartbeat = nodes.NodeHeartbeat(
        kind=NodeKind.BEAT,
        name="b",
        pid=os.getpid(),
        seen_at=clock.now(),
        progressed_at=clock.now(),
        outages=report,
    )
    register = partial(nodes.register, heartbeat=heartbeat, started_at=clock.now())
    dynbeat.context.database.run(register)

    evaluation = evaluate(collect_health(dynbeat.app))

    assert evaluation.healthy
    (warning,) = [each for each in evaluation.warnings if each.code == "duty_failing"]
    assert "duty 'rescue' fails since 2026-11-21T09:00:00+00:00: ValueError" in warning.text
    assert json.loads(report)[0]["kind"] == "duty"


class NoBroker:
    """A publisher whose broker is unreachable."""

    def connect(self):
        raise ConnectionRefusedError("no broker")

    def outage_delay(self):
        return None


@each_database
def test_what_needs_no_broker_continues_without_one(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.create("resting", task="t", trigger=MINUTELY)
    pass_minutes(clock, beat, 1)
    killed = sent[0].run_id
    start(dynbeat, killed)
    mine.pause("resting", until=clock.now() + MINUTE)
    execute(dynbeat, "UPDATE dynbeat_schedule SET next_run_at = NULL WHERE name = 'n'")
    alone = ManualBeat(dynbeat, NoBroker())

    for _ in range(3):
        clock.advance(MINUTE)
        with pytest.raises(ConnectionRefusedError, match="no broker"):
            alone.run_until_idle()

    assert run_of(dynbeat, killed).status == "lost"
    assert mine.get("resting").enabled
    assert mine.get("n").next_run_at is not None
    assert len(sent) == 2


def test_an_outage_each_minute_does_not_end_the_rescue(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    pass_minutes(clock, beat, 1)
    start(dynbeat, sent[0].run_id)

    for _ in range(10):
        clock.advance(MINUTE - SECOND)
        beat.run_until_idle()
        beat._dispatcher.note_outage()
        clock.advance(SECOND)
        beat.run_until_idle()

    assert run_of(dynbeat, sent[0].run_id).status == "lost"


def test_an_error_of_one_statement_is_no_outage(dynbeat):
    with pytest.raises(DBAPIError) as raised:
        execute(dynbeat, "SELECT nothing FROM dynbeat_schedule")

    assert not dynbeat.context.database.is_outage(raised.value)
