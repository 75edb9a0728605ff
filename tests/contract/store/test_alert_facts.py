"""Facts are stored in the transaction of the state change."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.db.alert_models import AlertFact
from celery_dynbeat.store.alerts import facts
from tests.support.applications import START


def rows(number):
    return [
        {
            "kind": AlertKind.FAILED if index % 2 else AlertKind.LATE,
            "schedule_id": index + 1,
            "run_id": new_run_id(START) if index % 2 else None,
            "at": START + timedelta(microseconds=index),
            "value": None if index % 2 else index / 2,
        }
        for index in range(number)
    ]


def stored(dynbeat):
    columns = [getattr(AlertFact, name) for name in rows(1)[0]]
    query = select(*columns).order_by(AlertFact.id)
    return dynbeat.context.database.run(
        lambda session: [dict(row._mapping) for row in session.execute(query)]
    )


@pytest.mark.parametrize("number", [0, 1, 501])
def test_facts_are_stored_as_given_and_in_their_order(dynbeat, number):
    given = rows(number)

    dynbeat.context.database.run(lambda session: facts.add(session, given))

    assert stored(dynbeat) == given


def test_facts_of_a_transaction_that_fails_are_not_stored(dynbeat):
    def fail(session):
        facts.add(session, rows(2))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        dynbeat.context.database.run(fail)

    assert stored(dynbeat) == []
