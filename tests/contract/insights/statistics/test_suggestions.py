"""The owners and the tasks that a form suggests."""

import pytest

from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.insights import lists
from celery_dynbeat.store import nodes
from tests.support.applications import MINUTELY

OWNERS = ["", "Bob", "bob", "bob-1", "bob:1", "böb", "team", "user", "user:1", "user:10"]
OWNERS += ["user:2", "USER:1", "Z", "é", "ß", "한국", "\U0001f600"]


@pytest.fixture
def owners(dynbeat):
    """Create two schedules for each owner."""
    return create_owners(dynbeat)


def create_owners(dynbeat):
    names = [*OWNERS, *(f"z{index}" for index in range(40))]
    dynbeat.schedules.create_many(
        {"owner": owner, "name": name, "task": "t", "trigger": MINUTELY}
        for owner in names
        for name in ("a", "b")
    )
    return names


def test_each_owner_is_listed_once(dynbeat, owners):
    found = lists.owners(dynbeat.context, limit=100)

    assert (len(found), set(found)) == (len(owners), set(owners))
    assert lists.owners(dynbeat.context, limit=2) == found[:2]


def test_tasks_are_those_of_living_workers_and_of_the_application(dynbeat, clock):
    @dynbeat.context.app.task(name="app.own", shared=False)
    def own():
        """Do nothing."""

    def worker(name, tasks):
        heartbeat = nodes.NodeHeartbeat(
            kind=NodeKind.WORKER, name=name, pid=1, seen_at=clock.now(), tasks=tasks
        )
        dynbeat.context.database.run(
            lambda session: nodes.register(session, heartbeat=heartbeat, started_at=clock.now())
        )

    worker("dead", '["app.dead"]')
    clock.advance(dynbeat.context.settings.node_timeout * 2)
    worker("a", '["app.b", "app.a", "celery.chord", "App"]')
    worker("b", '["app.b", "app.c", 5]')
    worker("by hand", "not JSON")
    worker("number", "5")
    worker("unknown", None)

    of_app = ["app.a", "app.b", "app.c", "app.own"]
    assert lists.tasks(dynbeat.context, prefix="app.") == of_app
    assert lists.tasks(dynbeat.context, prefix="App") == ["App"]
    assert lists.tasks(dynbeat.context, prefix="app.", limit=2) == ["app.a", "app.b"]
    assert lists.tasks(dynbeat.context, prefix="celery.") == []
