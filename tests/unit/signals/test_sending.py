"""A signal of a transaction is sent after its commit, and never after a rollback."""

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_dynbeat.signals import run_failed
from celery_dynbeat.signals.sending import send_after_commit


@pytest.fixture
def received():
    events = []

    def receive(event, **_):
        events.append(event)

    run_failed.connect(receive)
    yield events
    run_failed.disconnect(receive)


@pytest.fixture
def session():
    with Session(create_engine("sqlite://")) as session:
        yield session


def report(session, event):
    send_after_commit(session, run_failed, event)


def test_nothing_is_sent_before_the_commit(session, received):
    report(session, 1)
    session.flush()
    assert received == []

    session.commit()

    assert received == [1]


def test_a_second_commit_sends_nothing_again(session, received):
    report(session, 1)
    session.commit()
    session.commit()

    assert received == [1]


def test_a_rollback_discards_what_was_reported_before_it(session, received):
    session.begin()
    report(session, 1)
    session.rollback()
    report(session, 2)
    session.commit()

    assert received == [2]


def test_the_rollback_of_a_savepoint_discards_what_was_reported_within_it(session, received):
    session.begin()
    report(session, "before")
    with session.begin_nested() as savepoint:
        report(session, "within")
        with session.begin_nested():
            report(session, "within both")
        savepoint.rollback()
    with session.begin_nested():
        report(session, "released")
    assert received == []

    session.commit()

    assert received == ["before", "released"]


def test_a_rollback_discards_what_a_released_savepoint_reported(session, received):
    session.begin()
    with session.begin_nested():
        report(session, 1)
    session.rollback()
    session.commit()

    assert received == []


def test_a_receiver_that_raises_does_not_fail_the_commit(session, received, caplog):
    def fail(**_):
        raise RuntimeError("broken receiver")

    run_failed.connect(fail)
    try:
        report(session, 1)
        session.commit()
    finally:
        run_failed.disconnect(fail)

    assert received == [1]
    assert "broken receiver" in caplog.text
