"""An application with alerts, and messages whose deliveries are recorded."""

from types import SimpleNamespace

import pytest

from celery_dynbeat.alerts.delivery import Delivered, DeliveryError
from celery_dynbeat.alerts.messages import Messages
from tests.support.applications import MINUTELY, START, execute


class Deliveries:
    """Records what is delivered. ``errors`` maps an URL to the reason why it refuses."""

    def __init__(self):
        self.made = []
        self.errors = {}
        self.failure = None

    def __call__(self, content, urls, *, application, flower_url, templates, timeout):
        del application, flower_url, templates, timeout
        if self.failure is not None:
            raise DeliveryError(self.failure)
        self.made.append(SimpleNamespace(content=content, urls=list(urls)))
        return Delivered(title="", body="", errors=[self.errors.get(url) for url in urls])


@pytest.fixture
def deliveries():
    return Deliveries()


@pytest.fixture
def alerting(limited):
    """Make an application with alerts."""

    def make(**settings):
        return limited(alert_urls=["json://a"], **settings)

    return make


@pytest.fixture
def messages_of(deliveries):
    def make(dynbeat, *, node="beat1", deliver=deliveries):
        return Messages(
            database=dynbeat.context.database,
            clock=dynbeat.context.clock,
            settings=dynbeat.context.settings,
            node=node,
            deliver=deliver,
        )

    return make


@pytest.fixture
def add_alerts():
    """Insert schedules, each with an open alert that no message reports yet."""

    def add(dynbeat, count=1, *, kind="failed", target="default", prefix="s", at=START, **columns):
        schedules = [
            {"owner": "user:42", "name": f"{prefix}{each}", "task": "t", "trigger": MINUTELY}
            for each in range(count)
        ]
        dynbeat.schedules.create_many(schedules)
        values = {
            "owner": "owner",
            "name": "name",
            "kind": f"'{kind}'",
            "opened_at": f"'{at:%Y-%m-%d %H:%M:%S}'",
            "last_at": f"'{at:%Y-%m-%d %H:%M:%S}'",
            "target": f"'{target}'",
            "unsent": "'opened'",
            "unsent_at": f"'{at:%Y-%m-%d %H:%M:%S}'",
            "checked_at": f"'{at:%Y-%m-%d %H:%M:%S}'",
            **columns,
        }
        execute(
            dynbeat,
            f"INSERT INTO dynbeat_alert (schedule_id, {', '.join(values)})"
            f" SELECT id, {', '.join(values.values())} FROM dynbeat_schedule"
            f" WHERE name LIKE '{prefix}%'",
        )

    return add
