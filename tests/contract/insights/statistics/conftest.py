"""Rows of history, written without a beat, and all rows for an oracle to read."""

import pytest
from sqlalchemy import insert, select

from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.states import UNFINISHED, UNSTARTED
from celery_dynbeat.db.models import Run
from tests.support.applications import START

_DEFAULTS = {
    "schedule_id": None,
    "owner": "user:42",
    "name": "n",
    "task": "t",
    "origin": "schedule",
    "status": "succeeded",
    "attempt": 1,
    "fire_count": 1,
    "overdue_at": None,
    "sent_at": None,
    "started_at": None,
    "finished_at": None,
    "nominal_at": None,
    "error": None,
    "traceback": None,
}


@pytest.fixture
def add_runs(dynbeat):
    """Return a function that inserts runs, given as dicts of columns; ``created_at`` is enough."""

    def add(rows):
        complete = []
        for row in rows:
            values = {**_DEFAULTS, "created_at": START, **row}
            at = values["created_at"]
            values = {"id": new_run_id(at), "fire_at": at, **values}
            is_unstarted = values["status"] in UNSTARTED
            if values["finished_at"] is None and values["status"] not in UNFINISHED:
                values["finished_at"] = at
            if values["overdue_at"] is None and is_unstarted:
                values["overdue_at"] = at
            complete.append(values)
        with dynbeat.context.database.engine.begin() as connection:
            connection.execute(insert(Run), complete)
        return complete

    return add


@pytest.fixture
def all_rows(dynbeat):
    """Return a function that reads all rows of a model, for an oracle."""

    def read(model):
        return dynbeat.context.database.read(
            lambda session: session.scalars(select(model).order_by(model.id)).all()
        )

    return read
