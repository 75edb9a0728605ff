"""An event of a transaction is delivered after its commit, and never after a rollback."""

from dataclasses import dataclass

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_dynbeat.telemetry import (
    call_on_commit,
    emit,
    emit_on_commit,
    has_listeners,
    subscribe,
    unsubscribe,
)


@dataclass(frozen=True)
class Happened:
    """An event."""

    number: object


@pytest.fixture
def received():
    numbers = []

    def receive(event):
        numbers.append(event.number)

    subscribe(receive, Happened)
    yield numbers
    unsubscribe(receive, Happened)


@pytest.fixture
def session():
    with Session(create_engine("sqlite://")) as session:
        yield session


def report(session, number):
    emit_on_commit(session, Happened(number))


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


def test_a_call_is_made_once_for_each_commit(session, received):
    def call():
        received.append("called")

    for _ in range(2):
        call_on_commit(session, call)
        call_on_commit(session, call)
        report(session, 1)
        session.commit()

    assert received == ["called", 1] * 2


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


def test_a_listener_that_raises_fails_neither_the_commit_nor_other_listeners(
    session, received, caplog
):
    def fail(event):
        raise RuntimeError(f"listener {event.number}")

    subscribe(fail, Happened)
    try:
        report(session, 1)
        session.commit()
    finally:
        unsubscribe(fail, Happened)

    assert received == [1]
    assert "listener 1" in caplog.text


def test_a_type_has_listeners_until_the_last_one_is_removed():
    assert not has_listeners(Happened)
    for key in ("a", "b"):
        subscribe(print, Happened, key=key)
    unsubscribe("a", Happened)
    assert has_listeners(Happened)
    unsubscribe("b", Happened)
    assert not has_listeners(Happened)


def test_a_second_listener_with_the_key_of_another_is_not_called(received):
    subscribe(lambda event: received.append(("first", event.number)), Happened, key="k")
    subscribe(lambda event: received.append(("second", event.number)), Happened, key="k")
    try:
        emit(Happened(1))
    finally:
        unsubscribe("k", Happened)

    assert received == [1, ("first", 1)]
