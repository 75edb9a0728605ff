"""Trace contexts are stored and read on each database, with dynbeat_traces only."""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from sqlalchemy import event

from celery_dynbeat.store.runs import traces
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, execute

SPAN = SpanContext(0xA, 0xB, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
TRACEPARENT = f"00-{0xA:032x}-{0xB:016x}-01"


@contextmanager
def executed(dynbeat):
    """Yield the list of executed statements."""
    engine, found = dynbeat.context.database.engine, []

    def note(_connection, _cursor, statement, *_):
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)


def make_edits(dynbeat):
    mine = dynbeat.schedules.for_owner("user:1")
    with trace.use_span(NonRecordingSpan(SPAN)):
        mine.create("n", task="t", trigger=MINUTELY)
        mine.update("n", description="new")
        mine.pause("n")
        mine.resume("n")
        return mine.get("n")


def stored(dynbeat, *schedule_ids):
    return dynbeat.context.database.read(lambda session: traces.of_edits(session, schedule_ids))


def test_the_context_belongs_to_the_version_that_the_edit_made(limited):
    dynbeat = limited(traces=True)
    made = make_edits(dynbeat)
    other = dynbeat.schedules.for_owner("user:1").create("other", task="t", trigger=MINUTELY)

    assert stored(dynbeat, made.id, other.id) == {(made.id, made.version): TRACEPARENT}


def test_a_bulk_create_stores_the_context_of_each_schedule(limited):
    dynbeat = limited(traces=True)
    with trace.use_span(NonRecordingSpan(SPAN)):
        dynbeat.schedules.create_many(
            [{"name": name, "task": "t", "trigger": MINUTELY} for name in ("a", "b")]
        )

    ids = [dynbeat.schedules.for_owner("").get(name).id for name in ("a", "b")]
    assert stored(dynbeat, *ids) == {(each, 1): TRACEPARENT for each in ids}


def test_the_contexts_of_runs_are_read_with_those_of_their_originals(limited):
    dynbeat = limited(traces=True)
    mine = dynbeat.schedules.for_owner("user:1")
    mine.create("n", task="t", trigger=MINUTELY)
    original, other = (mine.run_now("n").id for _ in range(2))
    ended = "status = 'failed', overdue_at = NULL, finished_at = created_at"
    execute(dynbeat, f"UPDATE dynbeat_run SET {ended} WHERE id = :id", id=original)
    rerun = mine.rerun(original).id
    database = dynbeat.context.database
    contexts = {original: TRACEPARENT, other: TRACEPARENT.replace("a", "c")}
    database.run(lambda session: traces.store(session, contexts))

    ids = [original, other, rerun]
    assert database.read(lambda session: traces.of_runs(session, ids)) == {
        original: (contexts[original], None),
        other: (contexts[other], None),
        rerun: (None, contexts[original]),
    }


@pytest.mark.parametrize("setting", [False, True])
def test_statements_name_the_columns_with_a_span_and_the_setting_only(limited, setting):
    dynbeat = limited(traces=setting)
    with executed(dynbeat) as statements:
        make_edits(dynbeat)
        dynbeat.schedules.for_owner("user:1").run_now("n")
        ManualBeat(dynbeat).run_until_idle()

    assert any("dynbeat_schedule" in sql for sql in statements)
    traced = [sql for sql in statements if "traceparent" in sql or "traced_version" in sql]
    # If the provider of the process records spans, the context of the run is stored.
    others = [sql for sql in traced if not sql.startswith("UPDATE dynbeat_run")]
    # Four edits. The pass that takes the manual run reads the contexts of its schedule and of the
    # run.
    assert len(others) == (6 if setting else 0)
    assert setting or not traced


def test_without_a_span_an_edit_names_no_column_of_traces(limited):
    dynbeat = limited(traces=True)
    mine = dynbeat.schedules.for_owner("user:1")
    with executed(dynbeat) as statements:
        mine.create("n", task="t", trigger=MINUTELY)
        mine.update("n", description="new")

    assert not any("traceparent" in sql for sql in statements)


def test_the_contexts_of_a_batch_are_stored_without_a_round_trip_per_run(
    limited, clock, database_url
):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no round trips")
    dynbeat = limited(traces=True)
    names = [f"n{number}" for number in range(250)]
    dynbeat.schedules.create_many([{"name": n, "task": "t", "trigger": MINUTELY} for n in names])
    beat = ManualBeat(dynbeat)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    ids = [run.run_id for run in beat.publisher.sent]
    contexts = {each: f"00-{number:032x}-{0xB:016x}-01" for number, each in enumerate(ids, 1)}
    engine, batches = dynbeat.context.database.engine, []

    def note(_connection, _cursor, statement, parameters, _context, executemany):
        if statement.startswith("UPDATE dynbeat_run"):
            batches.append(len(parameters) if executemany else 1)

    event.listen(engine, "before_cursor_execute", note)
    dynbeat.context.database.run(lambda session: traces.store(session, contexts))

    read = dynbeat.context.database.read(lambda session: traces.of_runs(session, ids))
    assert {run_id: each.own for run_id, each in read.items()} == contexts
    assert len(contexts) == 250
    assert sum(batches) <= 3
