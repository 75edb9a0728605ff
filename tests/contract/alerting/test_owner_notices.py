"""An owner gets one notice when its schedule begins to fail, and one when it works again."""

import threading
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from celery_dynbeat import AlertRules, ConfigurationError
from celery_dynbeat.alerts import owner_notices
from celery_dynbeat.alerts.content import Content
from celery_dynbeat.alerts.delivery import Delivered
from celery_dynbeat.alerts.messages import Messages
from celery_dynbeat.alerts.notice_content import as_kwargs
from celery_dynbeat.alerts.sending import MAX_NOTICES_IN_FLIGHT, Sending
from celery_dynbeat.alerts.threads import AlertThreads
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.alert_models import Alert, AlertMessage
from celery_dynbeat.store.alerts import messages as stored_messages
from celery_dynbeat.store.alerts import owner_notices as stored_notices
from tests.support.applications import MINUTELY, execute
from tests.support.suites import one_database

MINUTE = timedelta(minutes=1)
DELAY, INTERVAL = timedelta(seconds=10), timedelta(minutes=5)
OWNER = "user:42"
SECRET = "pa55w0rd"
URL = f"json://user:{SECRET}@example.com"


@pytest.fixture
def notifying(alerting, clock):
    """Make an application whose owners get notices, with a beat that delivers them."""

    def make(recipient=lambda owner: [f"json://{owner.partition(':')[2]}"], **settings):
        made = alerting(alerts=None, recipient=recipient, **settings)
        sent, tasks, errors, operators = [], [], {}, []

        def deliver(content, urls, **_):
            if isinstance(content, Content):
                operators.append(content)
                return Delivered(title="", body="", errors=[None] * len(urls))
            sent.append((list(urls), [as_kwargs(each) for each in content.notices]))
            return Delivered(title="", body="", errors=[errors.get(url) for url in urls])

        def send_task(name, kwargs, task_id):
            if kwargs["schedule"] in errors.get(name, ()):
                raise ConnectionError(SECRET)
            tasks.append((name, kwargs, task_id))

        context = made.dynbeat.context

        def beat(node="beat1"):
            return Messages(
                database=context.database,
                clock=context.clock,
                settings=context.settings,
                node=node,
                deliver=deliver,
                send_task=send_task,
            )

        messages = beat()

        def end_run(status=Status.FAILED, *, after=MINUTE):
            clock.advance(after)
            made.worker.heartbeat()
            made.beat.publisher.sent.clear()
            made.beat.run_until_idle()
            for run in list(made.beat.publisher.sent):
                assert made.worker.start(run)
                made.worker.finish(run, status)
            made.beat.run_until_idle()
            made.alerts.run()

        def pass_time(span):
            clock.advance(span)
            made.alerts.run()
            messages.run_once()

        return SimpleNamespace(
            **vars(made),
            sent=sent,
            tasks=tasks,
            errors=errors,
            operators=operators,
            messages=messages,
            other=beat("beat2"),
            end_run=end_run,
            pass_time=pass_time,
            kinds=lambda: [[each["kind"] for each in notices] for _, notices in sent],
        )

    return make


def rows(made):
    query = select(AlertMessage).order_by(AlertMessage.id)
    return made.dynbeat.context.database.run(lambda session: session.scalars(query).all())


def test_a_streak_is_one_notice_and_its_end_another(notifying):
    made = notifying()
    made.mine.set_timezone("Asia/Seoul")
    made.mine.create("n", task="mail.secret_task", trigger=MINUTELY)
    for _ in range(8):
        made.end_run()
        made.pass_time(DELAY)
    made.end_run(Status.SUCCEEDED)
    made.pass_time(DELAY)
    assert made.kinds() == [["failing"]]
    for _ in range(6):
        made.end_run(Status.SUCCEEDED)
        made.pass_time(DELAY)

    assert made.kinds() == [["failing"], ["works_again"]]
    (urls, (first,)), (_, (last,)) = made.sent
    assert urls == ["json://42"]
    assert (first["owner"], first["schedule"], first["time_zone"]) == (OWNER, "n", "Asia/Seoul")
    assert first["text"].startswith("n has been failing since ")
    assert "(Asia/Seoul). Next run: " in first["text"]
    assert last["text"].startswith("n has worked again since ")
    shown = f"{made.sent} {[each.payload for each in rows(made)]}"
    assert "secret_task" not in shown
    assert "ValueError" not in shown


def test_a_schedule_that_flaps_is_one_notice(notifying):
    made = notifying()
    made.mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(5):
        made.end_run()
        made.pass_time(DELAY)
        made.end_run(Status.SUCCEEDED)
        made.pass_time(DELAY)

    assert made.kinds() == [["failing"]]


def test_a_failure_that_is_over_before_its_notice_is_one_notice(notifying):
    made = notifying(alert_delay=600)
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.end_run()
    made.end_run(Status.SUCCEEDED)
    made.pass_time(timedelta(minutes=11))
    made.pass_time(timedelta(minutes=11))

    ((_, (notice,)),) = made.sent
    assert notice["kind"] == "failing"
    assert "and has worked again since" in notice["text"]


def test_a_schedule_that_flaps_around_its_notice_is_one_notice(notifying):
    made = notifying(alert_delay=60)
    made.mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(6):
        # Each failure has ended when a notice could be sent.
        made.end_run()
        made.end_run(Status.SUCCEEDED)
        made.pass_time(MINUTE)

    assert made.kinds() == [["failing"]]
    assert "and has worked again since" in made.sent[0][1][0]["text"]


def test_without_the_rule_recovered_a_failure_that_has_ended_is_one_notice(notifying):
    made = notifying(alert_delay=600)
    made.mine.create("n", task="t", trigger=MINUTELY, alerts=AlertRules(recovered=False))
    made.end_run()
    made.end_run(Status.SUCCEEDED)
    made.pass_time(timedelta(minutes=11))
    made.pass_time(timedelta(minutes=11))

    assert made.kinds() == [["failing"]]


def test_a_pause_after_failures_says_how_many_and_that_of_the_owner_says_nothing(notifying):
    made = notifying()
    made.mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=2)
    made.mine.create("own", task="t", trigger=MINUTELY)
    made.mine.pause("own")
    made.end_run()
    made.pass_time(DELAY)
    made.end_run()
    made.pass_time(INTERVAL)

    assert made.kinds() == [["failing"], ["paused"]]
    text = made.sent[1][1][0]["text"]
    assert "because it failed 2 times in a row. It does not run until you resume it." in text
    assert made.sent[1][1][0]["next_run"] is None

    made.mine.resume("n")
    made.end_run(Status.SUCCEEDED)
    for _ in range(3):
        made.pass_time(INTERVAL)
    assert made.kinds() == [["failing"], ["paused"], ["works_again"]]


def test_a_pause_at_the_first_failure_is_one_notice(notifying):
    made = notifying()
    made.mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=1)
    made.end_run()
    made.pass_time(INTERVAL)

    assert made.kinds() == [["paused"]]


def test_a_quarantine_is_a_notice_and_its_end_another(notifying, clock):
    made = notifying()
    made.mine.create("n", task="t", trigger=MINUTELY)
    execute(made.dynbeat, 'UPDATE dynbeat_schedule SET trigger_spec = \'{"expression": "x"}\'')
    clock.advance(MINUTE)
    made.beat.run_until_idle()
    made.alerts.run()
    made.pass_time(DELAY)
    assert made.kinds() == [["cannot_run"]]
    assert "expression" not in made.sent[0][1][0]["text"]

    made.mine.update("n", trigger=MINUTELY)
    made.pass_time(INTERVAL)
    made.pass_time(INTERVAL)
    assert made.kinds() == [["cannot_run"], ["can_run_again"]]


def test_each_owner_gets_only_its_notices_and_the_application_gets_none(notifying):
    asked = []

    def recipient(owner):
        asked.append(owner)
        return [f"json://{owner.partition(':')[2]}"]

    made = notifying(recipient)
    made.mine.create_many([{"name": f"n{i}", "task": "t", "trigger": MINUTELY} for i in range(3)])
    made.dynbeat.schedules.for_owner("user:7").create("other", task="t", trigger=MINUTELY)
    made.dynbeat.schedules.for_owner("").create("app", task="t", trigger=MINUTELY)
    made.end_run()
    made.pass_time(DELAY)

    names = sorted(
        (urls, sorted(each["schedule"] for each in notices)) for urls, notices in made.sent
    )
    assert names == [(["json://42"], ["n0", "n1", "n2"]), (["json://7"], ["other"])]
    assert set(asked) == {OWNER, "user:7"}


def test_an_owner_gets_one_message_in_each_interval(notifying):
    made = notifying()
    made.mine.create("a", task="t", trigger=MINUTELY)
    made.end_run()
    made.pass_time(DELAY)
    made.mine.create_many([{"name": f"b{i}", "task": "t", "trigger": MINUTELY} for i in range(2)])
    made.end_run()
    made.pass_time(DELAY)
    assert made.kinds() == [["failing"]]
    made.pass_time(INTERVAL)

    assert made.kinds() == [["failing"], ["failing", "failing"]]


def test_two_beats_write_one_message(notifying, clock):
    made = notifying()
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.end_run()
    clock.advance(DELAY)
    made.other.run_once()
    made.messages.run_once()

    assert made.kinds() == [["failing"]]


def test_an_alert_that_a_caller_has_locked_does_not_block_its_owners_notices(
    notifying, database_url
):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    made = notifying()
    made.mine.create("a", task="t", trigger=MINUTELY)
    made.end_run()
    made.pass_time(DELAY)
    made.mine.create_many([{"name": f"b{i}", "task": "t", "trigger": MINUTELY} for i in range(2)])
    made.end_run()
    with made.dynbeat.context.database.engine.connect() as connection:
        connection.execute(select(Alert.id).where(Alert.name == "b0").with_for_update())
        # These notices are postponed, because the owner has got a message.
        made.pass_time(DELAY)
        made.pass_time(INTERVAL)
        connection.rollback()
    shown = [[each["schedule"] for each in notices] for _, notices in made.sent]
    assert shown == [["a"], ["b1"]]
    made.pass_time(INTERVAL)

    assert made.sent[-1][1][0]["schedule"] == "b0"


def test_an_owner_whose_alerts_are_locked_does_not_delay_other_owners(
    notifying, database_url, monkeypatch
):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    monkeypatch.setattr(stored_notices, "WINDOW", 2)
    made = notifying()
    made.mine.create_many([{"name": f"n{i}", "task": "t", "trigger": MINUTELY} for i in range(2)])
    made.end_run()
    made.dynbeat.schedules.for_owner("user:7").create("n", task="t", trigger=MINUTELY)
    made.end_run()
    with made.dynbeat.context.database.engine.connect() as connection:
        connection.execute(select(Alert.id).where(Alert.owner == OWNER).with_for_update())
        made.pass_time(DELAY)
        made.pass_time(DELAY)
        connection.rollback()
    assert [urls for urls, _ in made.sent] == [["json://7"]]
    # The first pass may continue behind these alerts.
    made.pass_time(DELAY)
    made.pass_time(DELAY)

    assert [urls for urls, _ in made.sent] == [["json://7"], ["json://42"]]


@one_database
def test_a_task_gets_each_notice_once_although_the_broker_fails_between(notifying):
    made = notifying(lambda _owner: "proj.tell")
    made.mine.create_many([{"name": f"n{i}", "task": "t", "trigger": MINUTELY} for i in range(2)])
    made.errors["proj.tell"] = ["n1"]
    made.end_run()
    made.pass_time(DELAY)
    (message,) = rows(made)
    assert message.error == "the task of dynbeat_recipient was not sent: ConnectionError"
    assert SECRET not in f"{message.error}{message.payload}"
    assert message.delivered == ["task:0"]
    del made.errors["proj.tell"]
    made.pass_time(timedelta(minutes=1))

    assert [name for name, _, _ in made.tasks] == ["proj.tell"] * 2
    assert [kwargs["schedule"] for _, kwargs, _ in made.tasks] == ["n0", "n1"]
    assert len({task_id for _, _, task_id in made.tasks}) == 2
    assert set(made.tasks[0][1]) == {
        *("owner", "schedule", "kind", "since", "until", "next_run", "time_zone", "text")
    }


@one_database
def test_no_recipient_means_no_message_and_no_failure(notifying):
    made = notifying(lambda _owner: None)
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.end_run()
    made.pass_time(DELAY)

    (message,) = rows(made)
    assert (message.next_try_at, message.sent_at, message.dropped_at) == (None, None, None)
    assert (made.sent, made.tasks) == ([], [])


@one_database
def test_a_function_that_fails_is_logged_once_and_its_notice_is_tried_again(notifying, caplog):
    answers = [ValueError(URL), ["not a url"], URL, [URL]]

    def recipient(_owner):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = notifying(recipient, alert_urls=["json://ops"])
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.end_run()
    for _ in range(3):
        made.pass_time(timedelta(minutes=2))
    # The operators get their message in the meantime.
    assert [each.total for each in made.operators] == [1]
    notices = [row for row in rows(made) if row.target.startswith("owner:")]
    assert [row.attempts for row in notices] == [3]
    made.pass_time(timedelta(minutes=2))

    assert made.sent[-1][0] == [URL]
    failed = [each for each in caplog.records if each.event == "recipient_failed"]
    assert [each.owner for each in failed] == [OWNER]
    assert SECRET not in caplog.text


def test_lists_of_targets_show_the_notices_of_all_owners_as_one(notifying):
    made = notifying(lambda _owner: [URL])
    made.errors[URL] = "refused"
    for owner in ("a", "b"):
        made.dynbeat.schedules.for_owner(owner).create("n", task="t", trigger=MINUTELY)
    made.end_run()
    before = made.dynbeat.schedules.alert_targets()
    made.pass_time(DELAY)

    # No operator has a URL, so that the alerts of the target wait for the next pass.
    assert {each.target: each.unsent_alerts for each in before} == {"(owners)": 2, "default": 2}
    (target,) = made.dynbeat.schedules.alert_targets()
    assert (target.target, target.urls, target.unsent_alerts) == ("(owners)", 0, 0)
    assert (target.waiting, target.failing, target.error) == (2, 2, "refused")


def test_an_erased_owner_gets_no_notice_and_leaves_none(notifying):
    made = notifying()
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.end_run()
    made.errors["json://42"] = "refused"
    made.pass_time(DELAY)
    assert [each.owner_notice for each in made.mine.alerts()] == ["reported"]
    exported = [line for line in made.mine.export() if line["record"] == "alert"]
    assert [line["owner_notice"] for line in exported] == ["reported"]
    made.dynbeat.schedules.delete_owner(OWNER, erase_history=True)
    made.pass_time(INTERVAL)

    assert len(made.sent) == 1
    assert rows(made) == []


@one_database
def test_a_wrong_path_stops_beat_at_its_start(alerting):
    context = alerting(alerts=None, recipient="tests.missing.recipient_of").dynbeat.context
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        AlertThreads(
            database=context.database, clock=context.clock, settings=context.settings, node="b"
        )


@one_database
def test_a_backlog_of_messages_delays_the_notices_and_loses_none(notifying, monkeypatch, clock):
    monkeypatch.setattr(owner_notices, "MAX_BACKLOG", 2)
    made = notifying()
    for number in range(5):
        owner = made.dynbeat.schedules.for_owner(f"user:{number}")
        owner.create("n", task="t", trigger=MINUTELY)
    made.end_run()
    writer = owner_notices.NoticeWriter(
        made.dynbeat.context.database, made.dynbeat.context.settings
    )
    clock.advance(DELAY)
    writer.write_due(clock.now())
    writer.write_due(clock.now())
    assert len(rows(made)) == 2
    for _ in range(3):
        made.pass_time(timedelta(seconds=5))

    assert sorted(urls[0] for urls, _ in made.sent) == [f"json://{each}" for each in range(5)]


def fail_notices_of(made, number):
    for each in range(number):
        made.dynbeat.schedules.for_owner(f"user:{each}").create("n", task="t", trigger=MINUTELY)
        made.errors[f"json://{each}"] = "refused"
    made.end_run()


@one_database
def test_messages_that_are_tried_again_limit_the_notices_that_are_written(notifying, monkeypatch):
    monkeypatch.setattr(owner_notices, "MAX_UNFINISHED", 2)
    made = notifying()
    fail_notices_of(made, 3)
    for _ in range(3):
        # The next try of the first two is later.
        made.pass_time(DELAY - timedelta(seconds=1))
    assert len(rows(made)) == 2
    made.errors.clear()
    for _ in range(3):
        made.pass_time(MINUTE)

    assert {each.sent_at is None for each in rows(made)} == {False}
    assert len(rows(made)) == 3


def test_messages_to_operators_are_delivered_first_and_have_a_place_of_their_own(notifying, clock):
    made = notifying()
    fail_notices_of(made, 5)
    made.pass_time(DELAY)
    assert len(rows(made)) == 5
    database, later = made.dynbeat.context.database, clock.now() + timedelta(minutes=30)

    def lease(*, busy=(), with_notices=True):
        options = {"now": later, "without": busy, "with_notices": with_notices}
        find = partial(stored_messages.has_due, **options)
        take = partial(stored_messages.lease, node="b", until=later + MINUTE, **options)
        found = database.run(take) if database.read(find) else None
        return found and found["target"]

    assert lease(with_notices=False) is None
    database.run(partial(stored_messages.insert, target="default", previous_id=0, at=later))
    assert lease() == "default"
    assert lease().startswith("owner:")


@one_database
def test_notices_that_hang_leave_a_place_for_a_message_to_operators(notifying, clock):
    made = notifying()
    fail_notices_of(made, 5)
    made.pass_time(DELAY)
    clock.advance(MINUTE)
    context, released = made.dynbeat.context, threading.Event()

    def deliver(_content, urls, **_):
        released.wait(10)
        return Delivered(title="", body="", errors=[None] * len(urls))

    sending = Sending(
        database=context.database,
        clock=clock,
        settings=context.settings,
        node="beat3",
        deliver=deliver,
    )
    sending.start_due()
    leased = [row.target for row in rows(made) if row.leased_by == "beat3"]
    assert len(leased) == MAX_NOTICES_IN_FLIGHT
    insert = partial(stored_messages.insert, target="default", previous_id=0, at=clock.now())
    context.database.run(insert)
    sending.start_due()
    leased = [row.target for row in rows(made) if row.leased_by == "beat3"]
    released.set()

    assert len(leased) == MAX_NOTICES_IN_FLIGHT + 1
    assert "default" in leased


@one_database
def test_a_payload_of_a_newer_version_is_an_error_of_its_message_alone(notifying):
    made = notifying()
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.errors["json://42"] = "refused"
    made.end_run()
    made.pass_time(DELAY)
    payload = '{"notices": [{"kind": "new"}]}'
    execute(made.dynbeat, f"UPDATE dynbeat_alert_message SET payload = '{payload}'")
    made.pass_time(INTERVAL)

    assert [row.error for row in rows(made)] == ["the message cannot be read: ValueError"]


def test_the_application_gets_no_notice_about_a_schedule_that_moved_to_it(notifying):
    asked = []

    def recipient(owner):
        asked.append(owner)
        return [f"json://{owner.partition(':')[2]}"]

    made = notifying(recipient=recipient)
    made.mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(2):
        made.end_run()
    made.dynbeat.schedules.move("n", owner="user:42", to="")
    for _ in range(8):
        made.pass_time(DELAY)

    assert "" not in asked


def failing(made):
    """Make a schedule of OWNER that fails, and send the notice."""
    made.mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(2):
        made.end_run()
    made.pass_time(DELAY)
    made.pass_time(DELAY)
    assert received(made) == [("42", "failing")]
    made.sent.clear()


def received(made):
    return [
        (urls[0].removeprefix("json://"), each["kind"]) for urls, sent in made.sent for each in sent
    ]


def test_a_new_owner_of_a_failing_schedule_gets_its_notice_and_the_notice_of_its_end(notifying):
    made = notifying()
    failing(made)

    made.dynbeat.schedules.move("n", owner=OWNER, to="user:43")
    made.pass_time(DELAY)
    made.pass_time(DELAY)
    assert received(made) == [("43", "failing")]
    made.end_run(Status.SUCCEEDED, after=INTERVAL)
    for _ in range(3):
        made.pass_time(INTERVAL)

    assert received(made) == [("43", "failing"), ("43", "works_again")]


def test_a_new_owner_gets_no_notice_of_the_end_of_a_failure_before_the_move(notifying):
    made = notifying()
    failing(made)
    made.end_run(Status.SUCCEEDED)

    made.dynbeat.schedules.move("n", owner=OWNER, to="user:43")
    for _ in range(3):
        made.pass_time(INTERVAL)
    assert received(made) == []
    for _ in range(2):
        made.end_run()
    made.pass_time(DELAY)
    made.pass_time(DELAY)

    assert received(made) == [("43", "failing")]


def stale_alert(made):
    """Make an alert that opened while its schedule moved, and so has the earlier owner."""
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.mine.create("private", task="t", trigger=MINUTELY)
    for _ in range(2):
        made.end_run()
    made.dynbeat.schedules.move("n", owner=OWNER, to="user:43")
    query = "UPDATE dynbeat_alert SET owner = :owner WHERE name = 'n'"
    execute(made.dynbeat, query, owner=OWNER)


def test_an_owner_gets_no_notice_about_a_schedule_that_has_moved(notifying, clock):
    made = notifying()
    stale_alert(made)

    for _ in range(3):
        clock.advance(DELAY)
        made.messages.run_once()

    sent = {urls[0]: [each["schedule"] for each in notices] for urls, notices in made.sent}
    assert sent == {"json://42": ["private"], "json://43": ["n"]}


def test_an_alert_follows_its_schedule_to_the_new_owner(notifying, clock):
    made = notifying()
    stale_alert(made)

    clock.advance(DELAY)
    made.alerts.run()

    assert [alert.schedule for alert in made.mine.alerts()] == ["private"]
    theirs = made.dynbeat.schedules.for_owner("user:43")
    assert [alert.schedule for alert in theirs.alerts()] == ["n"]


def test_an_owner_gets_the_notice_of_a_failing_schedule_of_the_application(notifying):
    made = notifying()
    made.dynbeat.schedules.for_owner("").create("n", task="t", trigger=MINUTELY)
    for _ in range(2):
        made.end_run()
    add_late_alert(made)

    made.dynbeat.schedules.move("n", owner="", to="user:43")
    states = {alert.kind: alert.owner_notice for alert in made.stored()}
    assert states == {"failed": "opened", "late": None}
    made.pass_time(DELAY)
    made.end_run(Status.SUCCEEDED, after=INTERVAL)
    for _ in range(3):
        made.pass_time(INTERVAL)

    assert received(made) == [("43", "failing"), ("43", "works_again")]


def add_late_alert(made):
    """Open an alert of a kind that owners get no notice about."""
    (failed,) = made.stored()
    instants = dict.fromkeys(("opened_at", "last_at", "checked_at"), failed.opened_at)
    late = {"schedule_id": failed.schedule_id, "owner": failed.owner, "name": failed.name}
    alert = Alert(kind="late", target="default", **late, **instants)
    made.dynbeat.context.database.run(lambda session: session.add(alert))


def test_an_owner_gets_the_notice_of_a_schedule_that_was_moved_by_way_of_the_application(notifying):
    made = notifying()
    failing(made)

    made.dynbeat.schedules.move("n", owner=OWNER, to="")
    made.dynbeat.schedules.move("n", owner="", to="user:43")
    made.pass_time(DELAY)

    assert received(made) == [("43", "failing")]
