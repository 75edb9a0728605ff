"""The alert rules and the ping URL of a schedule, and the rows by which beat checks it."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import event, select

from celery_dynbeat import AlertRules, InvalidScheduleError
from celery_dynbeat.beat.config_sync import sync
from celery_dynbeat.db.alert_models import AlertCheck
from celery_dynbeat.db.models import Schedule
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.suites import one_database

TOKEN = "5f0c-token"
URL = f"https://hc-ping.com/{TOKEN}"
RULES = AlertRules(after_failures=3, late_after=timedelta(minutes=2), lost=False, to="ops")
SILENT = AlertRules(silent_after=3600)


@pytest.fixture
def dynbeat(database_url, clock):
    with application(
        database_url,
        clock=clock,
        alert_urls={"default": [], "ops": ["json://localhost"]},
        ping_hosts=["hc-ping.com"],
    ) as made:
        made.context.prepare()
        yield made


def create(mine, name="n", **given):
    return mine.create(name, task="t", trigger=MINUTELY, **given)


def watched(dynbeat):
    """Return the names of the schedules that beat checks, with the instant."""
    query = select(Schedule.name, AlertCheck.due_at).join(
        AlertCheck, AlertCheck.schedule_id == Schedule.id
    )
    return dynbeat.context.database.run(
        lambda session: {row.name: row.due_at for row in session.execute(query)}
    )


def test_a_schedule_has_the_rules_and_the_url_that_are_given(mine):
    made = create(mine, alerts=RULES, ping_url=URL)

    assert mine.get("n") == made
    assert (made.alerts, made.ping_url) == (RULES, URL)
    assert made.to_dict()["alerts"] == RULES.to_json()
    assert json.loads(json.dumps(made.to_dict()))["ping_url"] == URL


@one_database
def test_rules_may_be_a_dict(mine, dynbeat):
    create(mine, "a", alerts={"late_after": 120, "to": "ops"})
    mine.upsert("b", task="t", trigger=MINUTELY, alerts={"late_after": timedelta(minutes=2)})
    many = [{"name": "c", "task": "t", "trigger": MINUTELY, "alerts": RULES, "ping_url": URL}]
    dynbeat.schedules.create_many([{"name": "d", "task": "t", "trigger": MINUTELY}, *many])

    own = dynbeat.schedules.for_owner("")
    assert mine.get("a").alerts == AlertRules(late_after=120, to="ops")
    assert mine.get("b").alerts == AlertRules(late_after=120)
    assert (own.get("c").alerts, own.get("c").ping_url) == (RULES, URL)
    assert (own.get("d").alerts, own.get("d").ping_url) == (None, None)


def test_an_update_replaces_all_rules_and_leaves_out_none(mine):
    create(mine, alerts=RULES, ping_url=URL)
    assert mine.update("n", description="other").alerts == RULES

    assert mine.update("n", alerts=AlertRules(paused=False)).alerts == AlertRules(paused=False)
    assert mine.update("n", alerts=AlertRules()).alerts is None
    assert mine.update("n", ping_url=None).ping_url is None


def test_an_update_with_the_same_rules_changes_nothing(mine):
    version = create(mine, alerts=RULES, ping_url=URL).version

    assert mine.update("n", alerts=RULES.to_json(), ping_url=URL).version == version


def test_new_rules_do_not_move_the_next_run(mine, clock):
    before = create(mine)
    clock.advance(timedelta(seconds=7))

    assert mine.update("n", alerts=SILENT, ping_url=URL).next_run_at == before.next_run_at


@one_database
@pytest.mark.parametrize(
    ("alerts", "words"),
    [
        ({"to": "ups"}, "to = 'ups': dynbeat_alert_urls has no such target; known are def"),
        ({"late_afte": 5}, "there is no such rule; did you mean late_after"),
        ({"late_after": "soon"}, "late_after = 'soon': must be a timedelta"),
        ([RULES], "must be AlertRules"),
        ("ops", "must be AlertRules"),
    ],
)
def test_an_invalid_rule_is_refused(mine, alerts, words):
    with pytest.raises(InvalidScheduleError, match=words) as caught:
        create(mine, alerts=alerts)

    assert caught.value.field == "alerts"


@one_database
@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"https://evil.example/{TOKEN}", "does not allow https://evil.example"),
        (f"http://169.254.169.254/{TOKEN}", "does not allow"),
        (f"https://user:{TOKEN}@hc-ping.com/", "user name"),
        (f"https://hc-ping.com:22/{TOKEN}", "does not allow"),
        (f"file:///{TOKEN}", "must begin with https"),
        (f"https://hc-ping.com/{TOKEN}" + "x" * 2_000, "at most 2000 characters"),
        ("", "must begin with https"),
        (5, "is of type int"),
        (TOKEN.encode(), "is of type bytes"),
    ],
)
@pytest.mark.parametrize("call", ["create", "update"])
def test_a_url_that_is_not_allowed_is_refused_without_its_token(mine, call, url, words):
    if call == "update":
        create(mine)

    with pytest.raises(InvalidScheduleError, match=words) as caught:
        create(mine, ping_url=url) if call == "create" else mine.update("n", ping_url=url)

    assert caught.value.field == "ping_url"
    assert TOKEN not in str(caught.value)


@one_database
def test_without_the_settings_no_target_and_no_host_is_known(database_url, clock):
    with application(database_url, clock=clock) as plain:
        mine = plain.schedules.for_owner("user:42")
        with pytest.raises(InvalidScheduleError, match="it has no targets: set it"):
            create(mine, alerts={"to": "ops"})
        with pytest.raises(InvalidScheduleError, match="list the allowed ones in dynbeat_ping_h"):
            create(mine, ping_url=URL)


@one_database
def test_other_edits_keep_a_url_whose_host_is_no_longer_allowed(dynbeat, mine):
    create(mine, alerts=RULES, ping_url=URL)
    execute(dynbeat, "UPDATE dynbeat_schedule SET ping_url = 'https://old.example/x'")

    changed = mine.update("n", description="d", ping_url="https://old.example/x")

    assert (changed.description, changed.ping_url) == ("d", "https://old.example/x")


@one_database
def test_no_repr_shows_the_url(mine):
    assert TOKEN not in repr(create(mine, ping_url=URL))


@one_database
def test_the_audit_has_the_rules_and_only_the_host_of_the_url(mine):
    create(mine, alerts=RULES, ping_url=URL)
    mine.update("n", ping_url=f"{URL}-2", alerts=SILENT)
    mine.delete("n")

    deleted, changed, created = mine.changes("n")
    assert created.after["alerts"] == RULES.to_json()
    assert changed.before["alerts"] == RULES.to_json()
    assert changed.after["alerts"] == SILENT.to_json()
    shown = [created.after, changed.before, changed.after, deleted.before]
    assert [values["ping_url"] for values in shown] == ["https://hc-ping.com/..."] * 4


def test_rules_that_only_sql_can_have_written_do_not_hide_the_schedule(dynbeat, mine):
    create(mine, alerts=RULES)
    execute(dynbeat, 'UPDATE dynbeat_schedule SET alerts = \'{"late_after": "soon"}\'')

    assert mine.get("n").alerts is None
    assert mine.update("n", alerts=RULES).alerts == RULES


def test_beat_checks_the_schedules_whose_rules_no_event_reports(dynbeat, mine):
    create(mine, "a", alerts=SILENT)
    create(mine, "b", alerts=AlertRules(frequent_above=3, frequent_within=60))
    create(mine, "c", alerts=RULES)
    create(mine, "d", alerts=AlertRules(silent_after=0))
    new = [{"name": name, "task": "t", "trigger": MINUTELY} for name in ("e", "f")]
    dynbeat.schedules.create_many([new[0] | {"alerts": SILENT}, new[1]])

    assert watched(dynbeat) == dict.fromkeys("abe", START)


def test_without_rules_that_need_checks_a_create_executes_no_other_statement(dynbeat, mine):
    def statements(name, **given):
        executed = []

        def note(_connection, _cursor, sql, *_rest):
            executed.append(sql)

        engine = dynbeat.context.database.engine
        event.listen(engine, "before_cursor_execute", note)
        create(mine, name, **given)
        dynbeat.schedules.create_many([{"name": name, "task": "t", "trigger": MINUTELY, **given}])
        event.remove(engine, "before_cursor_execute", note)
        return [sql for sql in executed if "alert_check" in sql or "set_config" in sql.lower()]

    plain = statements("plain")
    assert plain == statements("other", alerts=RULES)
    assert not any("alert_check" in sql for sql in plain)
    assert plain != statements("watched", alerts=SILENT)


def test_an_edit_of_the_rules_starts_and_ends_the_checks(dynbeat, mine, clock):
    create(mine)
    clock.advance(timedelta(minutes=5))
    mine.update("n", alerts=SILENT)
    assert watched(dynbeat) == {"n": START + timedelta(minutes=5)}

    clock.advance(timedelta(minutes=5))
    mine.update("n", description="other")
    assert watched(dynbeat) == {"n": START + timedelta(minutes=5)}
    mine.upsert("n", task="t", trigger=MINUTELY, alerts=AlertRules(silent_after=60))
    assert watched(dynbeat) == {"n": START + timedelta(minutes=10)}

    mine.update("n", alerts=None)
    assert watched(dynbeat) == {}


@one_database
def test_an_edit_that_fails_changes_no_check(dynbeat, mine):
    create(mine, alerts=SILENT)

    with pytest.raises(InvalidScheduleError):
        mine.update("n", alerts=None, ping_url="https://evil.example/")

    assert watched(dynbeat) == {"n": START}


@one_database
def test_entries_of_beat_schedule_take_rules(dynbeat):
    entry = {"task": "t", "schedule": 60.0, "alerts": {"silent_after": 60}, "ping_url": URL}
    dynbeat.app.conf.beat_schedule = {"n": entry}
    sync(dynbeat.context)

    info = dynbeat.schedules.for_owner("").get("n")
    assert (info.alerts, info.ping_url) == (AlertRules(silent_after=60), URL)
    assert watched(dynbeat) == {"n": START}

    dynbeat.app.conf.beat_schedule = {"n": {"task": "t", "schedule": 60.0}}
    sync(dynbeat.context)
    assert watched(dynbeat) == {}


@one_database
def test_the_setting_lets_beat_check_each_new_schedule(database_url, clock):
    with application(database_url, clock=clock, alert_silent_after=60) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        create(mine, "a")
        create(mine, "b", alerts=AlertRules(silent_after=0))

        assert watched(dynbeat) == {"a": START}


ALERT = (
    "INSERT INTO dynbeat_alert (schedule_id, owner, name, kind, opened_at, last_at, target,"
    " checked_at) SELECT id, owner, name, 'failed', created_at, created_at, 'default', created_at"
    " FROM dynbeat_schedule"
)
EVENT = (
    "INSERT INTO dynbeat_alert_fact (kind, schedule_id, at)"
    " SELECT 'failed', id, created_at FROM dynbeat_schedule"
)


@pytest.mark.parametrize("call", ["delete", "delete_owner", "erase"])
def test_a_deleted_schedule_leaves_no_alert(dynbeat, mine, call):
    create(mine, alerts=SILENT)
    execute(dynbeat, ALERT)

    if call == "delete":
        mine.delete("n")
    else:
        dynbeat.schedules.delete_owner("user:42", erase_history=call == "erase")

    assert execute(dynbeat, "DELETE FROM dynbeat_alert") == 0
    assert execute(dynbeat, "DELETE FROM dynbeat_alert_check") == 0


@pytest.mark.parametrize("call", ["delete", "delete_owner"])
def test_on_sqlite_a_schedule_with_a_reused_id_inherits_no_alert(sqlite_url, clock, call):
    with application(sqlite_url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        old = create(mine, alerts=SILENT)
        execute(dynbeat, ALERT)
        execute(dynbeat, EVENT)

        mine.delete("n") if call == "delete" else dynbeat.schedules.delete_owner("user:42")

        assert create(mine).id == old.id
        for table in ("alert", "alert_fact", "alert_check"):
            assert execute(dynbeat, f"DELETE FROM dynbeat_{table}") == 0
