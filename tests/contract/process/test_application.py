"""The first beat records its application, and a beat of another application refuses to start."""

import json
import threading

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat import ConfigurationError, DatabaseScheduler, store
from celery_dynbeat.beat.runtime import ensure_application
from celery_dynbeat.cli import dynbeat as command
from celery_dynbeat.db.engine import Database
from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from tests.support.applications import MINUTELY, START, application
from tests.support.suites import each_database

FIXES = ("dynbeat_database_url", "search_path", "dynbeat_application = 'shop'")


@pytest.fixture
def tables(dynbeat):
    """Return the database; its tables belong to no application yet."""
    return dynbeat.context.database


def check_application(tables, name):
    ensure_application(tables, name=name, now=lambda: START)


def recorded(tables):
    return tables.read(store.application_name)


def start_beat(dynbeat):
    """Start a beat, make one pass and stop it."""
    dynbeat.app.conf.update(dynbeat_poll_interval=0.01, result_expires=None)
    scheduler = DatabaseScheduler(dynbeat.app)
    scheduler.tick()
    scheduler.close()


def shown(dynbeat, *arguments):
    """Run ``dynbeat schema application`` and return its exit status and its output."""
    options = ["schema", "application", *arguments]
    result = CliRunner().invoke(
        command, options, obj=CLIContext(dynbeat.app, no_color=True, workdir=None)
    )
    return result.exit_code, result.output


@each_database
def test_the_first_beat_records_its_application_and_the_next_ones_accept_it(tables):
    check_application(tables, "shop")
    check_application(tables, "shop")

    assert recorded(tables) == "shop"


def test_a_beat_of_another_application_is_refused_with_both_names_and_the_fixes(tables):
    check_application(tables, "shop")

    with pytest.raises(ConfigurationError) as caught:
        check_application(tables, "my bill")

    for words in ("'shop'", "'my bill'", *FIXES, "schema application 'my bill'"):
        assert words in str(caught.value)
    assert recorded(tables) == "shop"


@each_database
def test_of_two_first_beats_of_two_applications_one_is_refused(database_url, tables):
    # The second reads before the first writes, and writes when the first commits.
    refused, has_read, second = [], threading.Event(), Database(database_url)

    def now():
        has_read.set()
        return START

    def start():
        with pytest.raises(ConfigurationError) as caught:
            ensure_application(second, name="billing", now=now)
        refused.append(caught.value)

    beat = threading.Thread(target=start)

    def work(session):
        store.record_application(session, name="shop", now=START)
        beat.start()
        assert has_read.wait(20)

    tables.run(work)
    beat.join(20)
    second.dispose()

    assert len(refused) == 1
    assert recorded(tables) == "shop"


@pytest.mark.parametrize("main", [None, "", "__main__"])
def test_a_beat_without_a_name_warns_and_is_refused_after_one_with_a_name(
    database_url, caplog, main
):
    with (
        application(database_url, main=main) as nameless,
        application(database_url, main="shop") as shop,
    ):
        for dynbeat in (nameless, shop):
            start_beat(dynbeat)

        assert [record for record in caplog.records if event_of(record) == "application_unnamed"]
        assert recorded(shop.context.database) == "shop"
        with pytest.raises(ConfigurationError, match=r"has no name.*dynbeat_application = 'shop'"):
            start_beat(nameless)


def event_of(record):
    return getattr(record, "event", None)


def test_a_beat_of_another_application_changes_no_row(database_url):
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


@pytest.mark.empty_database
def test_separate_schemas_keep_two_applications_apart(postgresql_url):
    for main in ("shop", "billing"):
        with application(postgresql_url) as setup, setup.context.database.engine.begin() as session:
            session.exec_driver_sql(f"CREATE SCHEMA {main}")
        options = {"connect_args": {"options": f"-c search_path={main}"}}
        with application(postgresql_url, main=main, engine_options=options) as dynbeat:
            dynbeat.schedules.for_owner("user:1").create("n", task="t", trigger=MINUTELY)
            start_beat(dynbeat)

            assert recorded(dynbeat.context.database) == main
            assert len(dynbeat.schedules.list()) == 1


@each_database
@pytest.mark.parametrize("in_session", [False, True])
def test_a_process_of_another_application_works_and_warns_once(database_url, caplog, in_session):
    with (
        application(database_url, main="shop") as shop,
        application(database_url, main="web") as web,
    ):
        shop.context.prepare()
        check_application(shop.context.database, "shop")
        mine = web.schedules.for_owner("user:1")

        for name in ("a", "b"):
            if in_session:
                web.context.database.run(
                    lambda session, name=name: mine.bound(session=session).create(
                        name, task="t", trigger=MINUTELY
                    )
                )
            else:
                mine.create(name, task="t", trigger=MINUTELY)

        warnings = [
            record for record in caplog.records if event_of(record) == "application_differs"
        ]
        assert len(warnings) == 1
        for words in ("'shop'", "'web'", "dynbeat_application = 'shop'"):
            assert words in warnings[0].getMessage()


def test_status_names_both_applications(dynbeat, tables):
    check_application(tables, "shop")

    verdict = evaluate(collect_health(dynbeat.app))

    (warning,) = [each for each in verdict.warnings if each.code == "application_differs"]
    assert "'shop'" in warning.text
    assert "dynbeat_application = 'shop'" in warning.hint


@each_database
def test_the_command_renames_the_application(dynbeat, tables):
    assert shown(dynbeat) == (0, f"{tables.shown_url}: no application is recorded\n")
    check_application(tables, "shop")
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
    check_application(tables, "contract")
    with pytest.raises(ConfigurationError):
        check_application(tables, "shop")


@each_database
def test_names_are_case_sensitive(tables):
    check_application(tables, "shop")

    with pytest.raises(ConfigurationError):
        check_application(tables, "Shop")
