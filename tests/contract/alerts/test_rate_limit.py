"""A target gets one message for each interval, with any number of beats."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import delete, event
from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import Alert, AlertMessage
from celery_dynbeat.store.alerts import messages
from tests.contract.alerts.test_messages import DELAY, INTERVAL
from tests.support.applications import START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.waiting import wait_until


@pytest.mark.parametrize("with_earlier_message", [False, True], ids=["first", "later"])
def test_two_beats_that_write_at_the_same_time_write_one_message(
    alerting, messages_of, add_alerts, clock, deliveries, database_url, with_earlier_message
):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    dynbeat = alerting()
    first, second = messages_of(dynbeat), messages_of(dynbeat, node="beat2")
    if with_earlier_message:
        add_alerts(dynbeat, prefix="earlier")
        clock.advance(DELAY)
        first.run_once()
        clock.advance(INTERVAL)
    before = len(deliveries.made)
    add_alerts(dynbeat, prefix="early", at=clock.now() - DELAY)
    other, inserts, locks = threading.Thread(target=second.run_once), [], []

    def start_the_other_beat(_connection, _cursor, statement, *_):
        if "FROM dynbeat_alert_message" in statement and "FOR UPDATE" in statement:
            locks.append(statement)
        if not statement.startswith("INSERT INTO dynbeat_alert_message"):
            return
        inserts.append(statement)
        if len(inserts) == 1:
            locks.clear()
            # The second beat finds another alert.
            add_alerts(dynbeat, prefix="late", at=clock.now() - DELAY)
            other.start()
            wait_until(is_blocked_or_done, within=10)

    def is_blocked_or_done():
        # It waits for the first beat to insert a message, or to unlock the newest one.
        return len(inserts) > 1 or (with_earlier_message and locks) or not other.is_alive()

    event.listen(dynbeat.context.database.engine, "before_cursor_execute", start_the_other_beat)
    first.run_once()
    other.join(30)

    made = deliveries.made[before:]
    assert [each.content.total for each in made] == [2]


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request):
    return request.param


@pytest.fixture(params=["no-statistics", "old-statistics"])
def many_alerts(request, database):
    """Make an application with 20 targets of 500 alerts each. One in ten is unsent."""
    with application(request.getfixturevalue(f"{database}_url")) as dynbeat:
        dynbeat.context.prepare()
        insert = AlertMessage.metadata.tables["dynbeat_alert"].insert()
        with Session(dynbeat.context.database.engine) as session:
            if request.param == "old-statistics":
                # The planner expects no target after "a".
                session.execute(insert, [{**alert, "target": "a"} for alert in alerts()])
                session.commit()
                analyze = "ANALYZE TABLE" if database == "mariadb" else "ANALYZE"
                execute(dynbeat, f"{analyze} dynbeat_alert")
                session.execute(delete(Alert))
            session.execute(insert, list(alerts()))
            session.commit()
        yield dynbeat


def alerts():
    """Yield alerts; those of target t0 are all sent."""
    for number in range(10_000):
        target = number % 20
        is_unsent = target > 0 and number % 10 == 3
        yield {
            "schedule_id": number,
            "owner": "user:1",
            "name": "n",
            "kind": "failed",
            "opened_at": START,
            "last_at": START,
            "target": f"t{target}",
            "unsent": "opened" if is_unsent else None,
            "unsent_at": START + timedelta(seconds=number) if is_unsent else None,
            "checked_at": START,
        }


def test_the_waiting_targets_are_read_without_their_alerts(many_alerts):
    with record_statements(many_alerts.context.database.engine) as statements:
        waiting = many_alerts.context.database.read_in_transaction(messages.waiting)

    assert [(each.target, each.since) for each in waiting] == [
        ("t13", START + timedelta(seconds=13)),
        ("t3", START + timedelta(seconds=3)),
    ]
    # Some for each of the 20 targets.
    assert sum(each.rows for each in statements) < 200
