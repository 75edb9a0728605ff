"""The row of a node follows what its process reports."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from celery_dynbeat import DatabaseScheduler
from celery_dynbeat.db.models import Node, NodeKind
from celery_dynbeat.process.heartbeat import HeartbeatWriter
from tests.support.applications import execute
from tests.support.suites import each_database

QUEUES = {"queues": '["a"]', "tasks": '["t"]'}


def writer_of(dynbeat):
    """Return a writer that writes at each call."""
    return HeartbeatWriter(
        database=dynbeat.context.database,
        clock=dynbeat.context.clock,
        kind=NodeKind.WORKER,
        name="w1",
        timeout=timedelta(0),
    )


@pytest.fixture
def writer(dynbeat):
    return writer_of(dynbeat)


@pytest.fixture
def names(dynbeat):
    """Return a function that reads the queues and the tasks of the node."""
    columns = select(Node.queues, Node.tasks)
    return lambda: dynbeat.context.database.read(lambda session: session.execute(columns).one())


def test_a_change_of_the_names_is_written(writer, names):
    writer.beat(**QUEUES)
    writer.beat(queues='["a","b"]', tasks='["t"]')

    assert names() == ('["a","b"]', '["t"]')


def test_unchanged_names_are_not_written_again(dynbeat, writer, names):
    writer.beat(**QUEUES)
    execute(dynbeat, "UPDATE dynbeat_node SET queues = '[]'")
    writer.beat(**QUEUES)

    assert names() == ("[]", '["t"]')


@each_database
def test_a_node_whose_row_was_deleted_registers_with_its_names(dynbeat, writer, names):
    writer.beat(**QUEUES)
    execute(dynbeat, "DELETE FROM dynbeat_node")
    writer.beat(**QUEUES)

    assert names() == ('["a"]', '["t"]')


def test_a_change_that_was_not_written_is_written_by_the_next_heartbeat(dynbeat, writer, names):
    writer.beat(**QUEUES)
    execute(dynbeat, "ALTER TABLE dynbeat_node RENAME TO away")
    writer.beat(queues='["b"]', tasks='["t"]')
    execute(dynbeat, "ALTER TABLE away RENAME TO dynbeat_node")
    writer.beat(queues='["b"]', tasks='["t"]')

    assert names() == ('["b"]', '["t"]')


def test_the_row_of_a_beat_says_when_it_stopped(dynbeat, clock):
    dynbeat.app.conf.update(dynbeat_poll_interval=0.01, result_expires=None)
    stopped_at = select(Node.stopped_at)
    beat = DatabaseScheduler(dynbeat.app)

    beat.tick()
    assert dynbeat.context.database.read(lambda session: session.scalar(stopped_at)) is None
    beat.close()

    assert dynbeat.context.database.read(lambda session: session.scalar(stopped_at)) == clock.now()
