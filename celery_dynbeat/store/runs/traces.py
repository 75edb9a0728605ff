"""The trace contexts that rows store."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Update, case, literal, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import RUNS, SCHEDULES
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs import MAX_IN_LIST, lock_free

#: Runs in one UPDATE with CASE, which compares each run with each id.
_RUNS = 100
_SCHEDULE = SCHEDULES.c
_ORIGINAL = RUNS.alias("original")


class RunContexts(NamedTuple):
    """The trace contexts of a run and of the run that it runs again, or None if not known."""

    own: str | None = None
    original: str | None = None


@in_index_order
def of_edits(session: Session, schedule_ids: Collection[int]) -> Mapping[tuple[int, int], str]:
    """Return the trace contexts of edits by the id of the schedule and its version."""
    columns = (_SCHEDULE.id, _SCHEDULE.traced_version, _SCHEDULE.traceparent)
    statement = force_index(select(*columns), SCHEDULES, "PRIMARY")
    rows = session.execute(statement.where(_SCHEDULE.id.in_(sorted(schedule_ids))))
    return {(row.id, row.traced_version): row.traceparent for row in rows if row.traceparent}


@in_index_order
def of_runs(session: Session, run_ids: Sequence[str]) -> Mapping[str, RunContexts]:
    """Return the trace contexts of runs by their id."""
    columns = (RUNS.c.id, RUNS.c.traceparent, _ORIGINAL.c.traceparent.label("original"))
    statement = force_index(select(*columns), RUNS, "PRIMARY")
    originals = RUNS.outerjoin(_ORIGINAL, _ORIGINAL.c.id == RUNS.c.rerun_of)
    rows = session.execute(statement.select_from(originals).where(RUNS.c.id.in_(run_ids)))
    return {row.id: RunContexts(row.traceparent, row.original) for row in rows}


@in_index_order
def store(session: Session, contexts: Mapping[str, str]) -> None:
    """Store the trace contexts of runs, by their id, except of runs that others have locked.

    Workers that start these runs wait for the transaction, so it must not need a round trip per
    run. A run without its context starts another trace.
    """
    parts = statements.in_parts(list(contexts), MAX_IN_LIST)
    ids = [run_id for part in parts for run_id in lock_free(session, part)]
    if not ids:
        return
    connection = session.connection()
    capabilities = capabilities_of(connection.dialect)
    if capabilities.has_json_recordset or capabilities.embedded:
        rows = [{"id": run_id, "traceparent": contexts[run_id]} for run_id in ids]
        statements.update_each(connection, RUNS, rows)
        return
    for part in statements.in_parts(ids, _RUNS):
        connection.execute(_set_contexts({run_id: contexts[run_id] for run_id in part}))


def _set_contexts(contexts: Mapping[str, str]) -> Update:
    run = RUNS.c
    by_id = [
        (run.id == run_id, literal(context, run.traceparent.type))
        for run_id, context in contexts.items()
    ]
    return update(RUNS).where(run.id.in_(contexts)).values(traceparent=case(*by_id))
