"""No output of any process contains a password of the database or the broker.

The processes are real. The tests search all of their output, also at level DEBUG.
"""

import logging

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from sqlalchemy import make_url, text

from celery_dynbeat import ConfigurationError, Dynbeat
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from tests.support.applications import MINUTELY, execute
from tests.support.databases import administration, new_name
from tests.support.sites import site

SECRET = "pa55w0rd-of-nobody"
BROKEN = "dynbeat_database_url"


@pytest.fixture
def secret_url(postgresql_url):
    """Return a database URL whose password is the secret."""
    role = new_name()
    with administration(postgresql_url) as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{SECRET}'"))
    yield make_url(postgresql_url).set(username=role, password=SECRET)
    with administration(postgresql_url) as connection:
        connection.execute(text(f"DROP OWNED BY {role} CASCADE"))
        connection.execute(text(f"DROP ROLE {role}"))


@pytest.fixture
def redis_url_with_secret(redis_url):
    # A server without passwords accepts any password for its user.
    return f"redis://default:{SECRET}@{redis_url.partition('://')[2]}"


def shown(url):
    return url.render_as_string(hide_password=False)


def malformed(url):
    """Return unreachable URLs, each with a part of the expected error."""
    return {
        "wrong database": (shown(url.set(database="nowhere")), "nowhere"),
        "server away": (shown(url.set(port=1)), "port 1"),
        "unknown account": (shown(url.set(username="nobody")), "nobody"),
        "missing driver": (f"postgresql+asyncpg://u:{SECRET}@127.0.0.1/d", BROKEN),
        "unknown kind": (f"oddsql://u:{SECRET}@127.0.0.1/d", BROKEN),
        "no URL": (f"u:{SECRET}@127.0.0.1", BROKEN),
        "an @ in the password": (f"postgresql+psycopg://u:a@{SECRET}@127.0.0.1/d", BROKEN),
        "unknown parameter": (f"{shown(url)}?passwort={SECRET}", "passwort"),
        "password in the query": (
            f"postgresql+psycopg://127.0.0.1:1/d?user=u&password={SECRET}", "port 1",
        ),
    }  # fmt: skip


def invoked_with(app):
    return CLIContext(app, no_color=True, workdir=None)


CASES = list(malformed(make_url("postgresql+psycopg://u:p@127.0.0.1/d")))


@pytest.mark.parametrize("case", CASES)
def test_an_unreachable_database_is_reported_without_its_password(case, capsys, secret_url):
    from click.testing import CliRunner

    from celery_dynbeat.cli import dynbeat as command

    url, expected = malformed(secret_url)[case]
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.dynbeat_database_url = url
    Dynbeat(app)

    for arguments in (["check"], ["check", "--json"], ["upgrade"]):
        result = CliRunner().invoke(command, ["schema", *arguments], obj=invoked_with(app))
        written = result.output + result.stderr + repr(result.exception)
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)
        assert expected in written
        assert SECRET not in written
    assert SECRET not in "".join(capsys.readouterr())


def test_a_command_without_its_database_names_the_folder_the_setting_and_the_fix(tmp_path):
    from click.testing import CliRunner

    from celery_dynbeat.cli import dynbeat as command

    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.dynbeat_database_url = f"sqlite:///{tmp_path}/missing/app.sqlite3"
    Dynbeat(app)

    for arguments in (["schema", "check"], ["schema", "application"], ["prune"]):
        result = CliRunner().invoke(command, arguments, obj=invoked_with(app))
        assert result.exit_code == 1
        assert f"the folder '{tmp_path}/missing' of dynbeat_database_url" in result.stderr
        assert "create it, or correct the path" in result.stderr


@pytest.mark.parametrize("case", ["wrong database", "unknown parameter", "missing driver"])
def test_a_beat_that_cannot_reach_its_database_does_not_log_the_password(
    case, secret_url, site_folder, broker_file_url
):
    url, _ = malformed(secret_url)[case]
    with site(site_folder, database_url=url, broker_url=broker_file_url) as made:
        process = made.beat("-l", "DEBUG")
        process.wait_for_log("Traceback")
        process.terminate()

        assert SECRET not in process.text


def test_a_running_site_writes_no_password(site_folder, secret_url, redis_url_with_secret):
    # Passwords: in the URL, in its query, for the driver, and in the engine options.
    url = shown(secret_url.update_query_dict({"application_name": f"{SECRET}-query"}))
    settings = {
        "dynbeat_engine_options": {"connect_args": {"password": SECRET, "sslpassword": SECRET}},
        "worker_enable_remote_control": True,
    }
    with site(site_folder, database_url=url, broker_url=redis_url_with_secret, **settings) as made:
        beat = made.beat("-l", "DEBUG").wait_for_log("beat started")
        worker = made.worker("-l", "DEBUG").wait_for_log("ready.")
        made.create_once("record", args=["argument-of-nobody"])
        made.wait_for_run("record", "succeeded")
        end_connections(secret_url)
        beat.wait_for_log("listener lost its connection")
        commands = [
            made.run(*command)
            for command in (("inspect", "conf"), ("report",), ("dynbeat", "schema", "check"))
        ]
        for command in commands:
            assert command.wait(within=30) == 0

        assert "dynbeat_database_url" in commands[0].text
        assert "dynbeat_engine_options" in commands[1].text
        assert "revision" in commands[2].text
        for process in (beat, worker, *commands):
            assert SECRET not in process.text, process.arguments
        ours = [line for line in beat.text.splitlines() if "celery_dynbeat" in line]
        assert "argument-of-nobody" not in "".join(ours)


def end_connections(url):
    """Close the connections of the database, as a restart of the server does."""
    with administration(shown(url)) as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = :name AND pid <> pg_backend_pid()"
            ),
            {"name": url.database},
        )


def test_the_repr_of_the_settings_contains_no_password():
    settings = Settings(
        database_url=f"postgresql://u:{SECRET}@h/d",
        engine_options={"connect_args": {"password": SECRET}},
    )

    assert SECRET not in repr(settings)
    assert SECRET not in f"{settings}"


def test_an_error_of_the_driver_contains_no_password(secret_url):
    database = Database(shown(secret_url.set(port=1)))

    with pytest.raises(Exception, match="port 1") as caught:
        database.read(lambda session: session.execute(text("SELECT 1")))

    assert SECRET not in str(caught.value)
    assert SECRET not in repr(database.engine)
    assert SECRET not in database.shown_url


def test_the_error_for_an_invalid_url_does_not_chain_the_original_error():
    with pytest.raises(ConfigurationError) as caught:
        _ = Database(f"u:{SECRET}").engine

    error = caught.value
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert SECRET not in str(error)


def test_a_password_with_an_at_sign_is_not_shown_as_a_port():
    with pytest.raises(ConfigurationError) as caught:
        _ = Database(f"postgresql+psycopg://u:half@h:{SECRET}@127.0.0.1/d").engine

    assert SECRET not in str(caught.value)


def test_beats_log_contains_no_task_arguments(dynbeat, mine, beat, clock, caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("good", "bad"):
        mine.create(
            name, task="t", trigger=MINUTELY, args=[SECRET], kwargs={"token": SECRET},
            options={"headers": {"token": SECRET}},
        )  # fmt: skip
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = '7' WHERE name = 'bad'")
    mine.run_now("good")
    clock.advance(MINUTELY.interval)

    beat.run_until_idle()

    assert len(beat.publisher.sent) == 2
    assert any(record.name.startswith("celery_dynbeat.") for record in caplog.records)
    for record in caplog.records:
        if record.name.startswith("celery_dynbeat."):
            assert SECRET not in record.getMessage() + repr(vars(record))
