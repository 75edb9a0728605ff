"""An application with a frozen clock and a manual beat; on SQLite unless a test asks for more."""

import contextlib

import pytest

from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import START, application


@pytest.fixture
def clock():
    return FrozenClock(START)


@pytest.fixture
def dynbeat(database_url, clock):
    with application(database_url, clock=clock) as made:
        made.context.prepare()
        yield made


@pytest.fixture
def mine(dynbeat):
    return dynbeat.schedules.for_owner("user:42")


@pytest.fixture
def beat(dynbeat):
    return ManualBeat(dynbeat)


@pytest.fixture
def sent(beat):
    """Give the list that grows with what beat sends."""
    return beat.publisher.sent


@pytest.fixture
def limited(database_url, clock):
    """Make applications on one database with settings of their own, such as limits."""
    with contextlib.ExitStack() as stack:

        def make(**settings):
            made = stack.enter_context(application(database_url, clock=clock, **settings))
            made.context.prepare()
            return made

        yield make
