"""The tables belong to one application: its first beat records it, beats of others refuse."""

import json
import threading

import pytest
from click.testing import CliRunner

from celery_dynbeat import ConfigurationError, DatabaseScheduler
from celery_dynbeat.cli import dynbeat as command
from celery_dynbeat.cli.status import as_dict
from celery_dynbeat.db.engine import Database
from celery_dynbeat.monitoring.health import evaluate
from celery_dynbeat.monitoring.probes import collect_health
from celery_dynbeat.runtime.application import ensure_application
from celery_dynbeat.store import application as store
from tests.support.applications import MINUTELY, START, application

WAYS_OUT = ("dynbeat_database_url", "search_path", "dynbeat_application = 'shop'")


#: Most of it does not depend on the kind of database.
every_database = pytest.mark.parametrize(
    "database_url", ["sqlite", "postgresql", "mariadb"], indirect=True
)


@pytest.fixture
def database_url(request):
    """Give the URL of a new database, on SQLite unless the test asks for every kind."""
    return request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")


@pytest.fixture
def tables(dynbeat):
    """Give the database, with tables that belong to no application yet."""
    return dynbeat.context.database


def admit(tables, name):
    ensure_application(tables, name=name, now=lambda: START)


def recorded(tables):
    return tables.read(lambda session: store.get_name(session.connection()))


def start_beat(dynbeat):
    """Let a beat start, make a pass and end."""
    dynbeat.app.conf.update(dynbeat_poll_interval=0.01, result_expires=None)
    scheduler = DatabaseScheduler(dynbeat.app)
    scheduler.tick()
    scheduler.close()


class _Named:
    def __init__(self, app):
        self.app = app


def shown(dynbeat, *arguments):
    """Run ``dynbeat schema application`` and return its exit status and what it prints."""
    options = ["schema", "application", *arguments]
    result = CliRunner().invoke(command, options, obj=_Named(dynbeat.app))
    return result.exit_code, result.output


@every_database
def test_the_first_beat_records_its_application_and_the_next_ones_agree(tables):
    admit(tables, "shop")
    admit(tables, "shop")

    assert recorded(tables) == "shop"


def test_a_beat_of_another_application_is_refused_with_both_names_and_the_ways_out(tables):
    admit(tables, "shop")

    with pytest.raises(ConfigurationError) as caught:
        admit(tables, "my bill")

    for words in ("'shop'", "'my bill'", *WAYS_OUT, "schema application 'my bill'"):
        assert words in str(caught.value)
    assert recorded(tables) == "shop"


@every_database
def test_of_two_first_beats_of_two_applications_one_is_refused(database_url, tables):
    # The second has found nothing recorded when the first writes, and writes when it commits.
    refused, looked, second = [], threading.Event(), Database(database_url)

    def now():
        looked.set()
        return START

    def begin():
        with pytest.raises(ConfigurationError) as caught:
            ensure_application(second, name="billing", now=now)
        refused.append(caught.value)

    beat = threading.Thread(target=begin)

    def work(session):
        store.record_name(session.connection(), name="shop", now=START)
        beat.start()
        assert looked.wait(20)

    tables.run(work)
    beat.join(20)
    second.dispose()

    assert len(refused) == 1
    assert recorded(tables) == "shop"


@every_database
def test_names_differ_by_case(tables):
    admit(tables, "shop")

    with pytest.raises(ConfigurationError):
        admit(tables, "Shop")


@pytest.mark.parametrize("main", [None, "", "__main__"])
def test_a_beat_without_a_name_is_warned_and_gives_way_to_one_with_a_name(
    database_url, caplog, main
):
    with (
        application(database_url, main=main) as nameless,
        application(database_url, main="shop") as shop,
    ):
        for dynbeat in (nameless, shop):
            start_beat(dynbeat)

        assert [record for record in caplog.records if at(record) == "application_unnamed"]
        assert recorded(shop.context.database) == "shop"
        with pytest.raises(ConfigurationError, match=r"has no name.*dynbeat_application = 'shop'"):
            start_beat(nameless)


def at(record):
    return getattr(record, "event", None)


def test_a_beat_of_another_application_touches_no_row(database_url):
    with (
        application(database_url, main="shop") as shop,
        application(database_url, main="billing") as billing,
    ):
        for dynbeat, entry in ((shop, "restock"), (billing, "invoice")):
            dynbeat.app.conf.beat_schedule = {entry: {"task": "t", "schedule": 60}}
        start_beat(shop)

        with pytest.raises(ConfigurationError):
            start_beat(billing)

        assert [info.name for info in shop.schedules.list()] == ["restock"]


def test_applications_that_share_their_tasks_say_so_by_one_name(database_url):
    for main in ("shop", "billing"):
        with application(database_url, main=main, application="suite") as dynbeat:
            start_beat(dynbeat)

            assert recorded(dynbeat.context.database) == "suite"


@pytest.mark.empty_database
def test_a_schema_of_its_own_keeps_two_applications_apart(postgresql_url):
    for main in ("shop", "billing"):
        with application(postgresql_url) as made, made.context.database.engine.begin() as session:
            session.exec_driver_sql(f"CREATE SCHEMA {main}")
        options = {"connect_args": {"options": f"-c search_path={main}"}}
        with application(postgresql_url, main=main, engine_options=options) as dynbeat:
            dynbeat.schedules.for_owner("user:1").create("n", task="t", trigger=MINUTELY)
            start_beat(dynbeat)

            assert recorded(dynbeat.context.database) == main
            assert len(dynbeat.schedules.list()) == 1


@every_database
@pytest.mark.parametrize("in_session", [False, True])
def test_a_process_of_another_application_works_and_warns_once(database_url, caplog, in_session):
    with (
        application(database_url, main="shop") as shop,
        application(database_url, main="web") as web,
    ):
        shop.context.prepare()
        admit(shop.context.database, "shop")
        mine = web.schedules.for_owner("user:1")

        for name in ("a", "b"):
            if in_session:
                web.context.database.run(
                    lambda session, name=name: mine.create(
                        name, task="t", trigger=MINUTELY, session=session
                    )
                )
            else:
                mine.create(name, task="t", trigger=MINUTELY)

        warnings = [record for record in caplog.records if at(record) == "application_differs"]
        assert len(warnings) == 1
        for words in ("'shop'", "'web'", "dynbeat_application = 'shop'"):
            assert words in warnings[0].getMessage()


@pytest.mark.parametrize("main", ["shop", None])
def test_a_process_of_the_same_or_of_no_name_warns_of_nothing(database_url, caplog, main):
    with application(database_url, main=main) as dynbeat:
        dynbeat.context.prepare_tables()
        admit(dynbeat.context.database, "shop")

        assert not dynbeat.schedules.list()

        assert "application_differs" not in map(at, caplog.records)


def test_status_names_both_applications(dynbeat, tables):
    admit(tables, "shop")

    found = collect_health(dynbeat.app)
    verdict = evaluate(found)

    assert as_dict(found, verdict)["application"] == {"name": "contract", "recorded": "shop"}
    (warning,) = [each for each in verdict.warnings if each.code == "application_differs"]
    assert "'shop'" in warning.text
    assert "dynbeat_application = 'shop'" in warning.hint


@every_database
def test_an_operator_renames_the_application(dynbeat, tables):
    assert shown(dynbeat) == (0, f"{tables.shown_url}: no application is recorded\n")
    admit(tables, "shop")
    _, before = shown(dynbeat)

    exit_status, after = shown(dynbeat, "contract", "--json")

    assert "application shop (this one is contract)" in before
    assert (exit_status, json.loads(after)) == (
        0,
        {
            "ok": True,
            "application": "contract",
            "this": "contract",
            "database": tables.shown_url,
        },
    )
    admit(tables, "contract")
    with pytest.raises(ConfigurationError):
        admit(tables, "shop")


@pytest.mark.parametrize("name", ["", " shop", "a\nb", "x" * 256])
def test_a_name_that_no_setting_could_have_is_not_recorded(dynbeat, tables, name):
    assert shown(dynbeat, name)[0] == 2
    assert recorded(tables) is None


@pytest.mark.empty_database
def test_without_tables_the_command_names_the_fix(database_url):
    with application(database_url) as dynbeat:
        exit_status, output = shown(dynbeat, "shop")

    assert exit_status == 1
    assert "dynbeat schema upgrade" in output
