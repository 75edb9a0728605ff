"""A listener that cannot connect doubles its delay, up to 30 seconds."""

import asyncio

import psycopg
import pytest
from celery import Celery

from celery_dynbeat.db.engine import Database
from celery_dynbeat.notify import BrokerListener, postgresql

LIMITS = [1, 2, 4, 8, 16, 30, 30, 30]


class Enough(Exception):  # noqa: N818 - the end of a test, no error
    pass


def within(pauses, limits):
    return all(0.75 * limit <= pause <= limit for pause, limit in zip(pauses, limits, strict=True))


def test_the_listener_of_postgresql_backs_off(monkeypatch, caplog):
    pauses = []

    def refuse(_database):
        raise psycopg.OperationalError

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == len(LIMITS):
            raise Enough

    monkeypatch.setattr(postgresql, "_connect", refuse)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    listener = postgresql.PostgresListener(Database("postgresql://"), lambda: None, list)

    with pytest.raises(Enough):
        asyncio.run(listener._listen_until_stopped())

    assert within(pauses, LIMITS)
    assert [record.event for record in caplog.records] == ["listener_failed"] * len(LIMITS)


def test_the_listener_of_the_broker_backs_off(monkeypatch, caplog):
    pauses = []
    listener = BrokerListener(
        Celery("listener", broker="memory://", set_as_current=False), lambda: None
    )

    def refuse(_connection):
        raise ConnectionError

    def wait(seconds):
        pauses.append(seconds)
        if len(pauses) == len(LIMITS):
            raise Enough

    monkeypatch.setattr(listener, "_consume", refuse)
    monkeypatch.setattr(listener._stopping, "wait", wait)

    with pytest.raises(Enough):
        listener._run()

    assert within(pauses, LIMITS)
    assert [record.event for record in caplog.records] == ["listener_failed"] * len(LIMITS)
