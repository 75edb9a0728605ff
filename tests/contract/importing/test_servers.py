"""The source is read on each kind of database, without a write and without its password."""

from datetime import timedelta

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from sqlalchemy import make_url, text

from celery_dynbeat import Every
from celery_dynbeat.api.edits import SourceProgress
from celery_dynbeat.cli import dynbeat as group
from celery_dynbeat.importing.foreign import Converted, ForeignEntry, SourceError
from celery_dynbeat.importing.table_rows import DJANGO_CELERY_BEAT
from celery_dynbeat.importing.tables import TableSource
from celery_dynbeat.importing.writing import Importer
from tests.support.applications import START, application
from tests.support.peers import write_store

ROW = {
    "name": "a",
    "task": "proj.a",
    "interval": {"every": 5, "period": "minutes"},
    "last_run_at": START.isoformat(),
    "kwargs": '{"text": "ü"}',
}


def source_at(url):
    with application("sqlite://") as dynbeat:
        return TableSource(url, DJANGO_CELERY_BEAT, context=dynbeat.context)


@pytest.fixture(params=["postgresql", "mariadb"])
def server_url(request):
    return request.getfixturevalue(f"{request.param}_url")


def test_a_store_on_a_server_is_imported(server_url, clock):
    write_store("django-celery-beat", [ROW], server_url)
    with application(server_url, clock=clock) as dynbeat:
        dynbeat.context.prepare()
        context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
        arguments = ["import", "django-celery-beat", server_url, "--apply"]

        result = CliRunner().invoke(group, arguments, obj=context)

        assert result.exit_code == 0, result.output
        made = dynbeat.schedules.for_owner("").get("a")
    assert made.given_trigger == Every(300)
    assert made.last_run_at == START
    assert made.next_run_at == START + timedelta(minutes=5)
    assert made.kwargs == {"text": "ü"}


@pytest.mark.parametrize("server_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("dry_run", [True, False], ids=["dry-run", "apply"])
@pytest.mark.parametrize(
    ("owner", "name", "count", "field"),
    [
        ("", "a\x00b", 0, "name"),
        ("", "a\ud800", 0, "name"),
        ("a\x00b", "a", 0, "owner"),
        ("\ud800", "a", 0, "owner"),
        ("x" * 300, "a", 0, "owner"),
        ("", "a", -3, "run_count"),
        ("", "a", 10**30, "run_count"),
        ("", "a", "3", "run_count"),
    ],
    ids=[
        *("name-null", "name-surrogate", "owner-null", "owner-surrogate", "owner-long"),
        *("count-negative", "count-large", "count-text"),
    ],
)
def test_a_value_that_no_database_takes_refuses_one_schedule(
    server_url, clock, owner, name, count, field, dry_run
):
    def found(name, run_count):
        progress = SourceProgress(run_count=run_count)
        converted = Converted(task="proj.a", trigger=Every(300), progress=progress)
        return ForeignEntry(name=name, described="", row={}, converted=converted)

    with application(server_url, clock=clock) as dynbeat:
        dynbeat.context.prepare()
        importer = Importer(
            dynbeat.context,
            "crontab",
            lambda found: owner if found.name == name else "",
            dry_run=dry_run,
        )

        results = importer.write([found(name, count), found("valid", 0)])

    outcomes = {each.entry.name: str(each.outcome) for each in results}
    assert outcomes == {name: "refuse", "valid": "create"}
    (reason,) = (each.reason for each in results if each.reason)
    assert reason.startswith(f"{field} = ")


def test_the_connection_to_the_source_cannot_write(server_url):
    write_store("django-celery-beat", [ROW], server_url)
    source = source_at(server_url)
    statement = text("UPDATE django_celery_beat_periodictask SET name = 'b'")

    with pytest.raises(SourceError, match=r"(?i)read.only"):
        source._read(lambda connection: connection.execute(statement))


def test_an_error_of_the_source_does_not_show_the_password(server_url):
    url = make_url(server_url).set(password="s3cret", database="missing")

    with pytest.raises(SourceError) as caught:
        source_at(url.render_as_string(hide_password=False)).count()

    assert "s3cret" not in str(caught.value)


def test_a_database_without_the_tables_names_them(sqlite_url):
    with application(sqlite_url) as dynbeat:
        dynbeat.context.prepare()

    with pytest.raises(SourceError, match="has no table 'django_celery_beat_periodictask'"):
        source_at(sqlite_url).count()
