"""Nonsense that SQL by hand writes affects no other schedule.

Constraints refuse most of it. The first test writes into each column of each table what the
database still accepts, next to 1,000 good schedules.
"""

from datetime import timedelta

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from sqlalchemy import bindparam, text
from sqlalchemy.exc import DBAPIError

from celery_dynbeat.alerts.checks import ScheduleCheck
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.beat.due_poller import LOCKED_PAUSE
from celery_dynbeat.cli import dynbeat as commands
from celery_dynbeat.common.text import EARLIEST
from celery_dynbeat.db.indexes import METADATA
from celery_dynbeat.db.types import Json, UtcDateTime
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.triggers import KINDS
from tests.support.applications import MINUTELY, application, execute
from tests.support.flower_pages import flower_pages
from tests.support.suites import each_database

GOOD = 1_000
#: JSON that the databases accept and Python cannot read.
TOO_LONG = "[" + "1" * 5_000 + "]"
TEXTS = ("", "nonsense", "x" * 300, "\t☃")
NUMBERS = ("0", "-1", "2147483647", "1e300", "-1e300", "1.5", "NaN")
INSTANTS = (
    "0001-01-01 00:00:00.000000",
    "1899-12-31 00:00:00.000000",
    "9999-12-31 23:59:59.999999",
    "2026-02-30 00:00:00.000000",
    "2026-00-10 00:00:00",
    "0000-00-00 00:00:00",
    "infinity",
    "-infinity",
    "0044-03-15 00:00:00 BC",
    "294276-12-31 00:00:00+00",
    "full moon",
)
JSON = (
    *("[]", "{}", "7", "null", '"text"', "not JSON", TOO_LONG, f'{{"a": {TOO_LONG}}}'),
    *("[" * 900 + "]" * 900, '["\\u0000", "\\ud800", null, {"a": 1e400}]', '{"": {"a": [null]}}'),
    '{"queue": 5, "expires": "x", "priority": -1}',
)


@pytest.fixture
def dynbeat(database_url, clock):
    with application(database_url, clock=clock, alert_urls=[]) as made:
        made.context.prepare()
        yield made


def kind_of(dynbeat):
    name = dynbeat.context.database.engine.dialect.name
    return "mariadb" if name == "mysql" else name


def values_for(column, kind):
    """Return nonsense for a column. SQLite stores a text, a number and bytes in any column."""
    if isinstance(column.type, UtcDateTime):
        own = INSTANTS
    elif isinstance(column.type, Json):
        own = JSON
    else:
        own = (*NUMBERS, *TEXTS)
    return (*own, None, *((b"\xff", 7, 1e300) if kind == "sqlite" else ()))


def write(connection, table, column, value, *, key, row):
    """Write a value; return whether the database accepts it."""
    quoted = connection.dialect.identifier_preparer.quote(column)
    statement = f"UPDATE {table} SET {quoted} = :value WHERE {key} = :row"
    try:
        with connection.begin_nested():
            connection.execute(text(statement), {"value": value, "row": row})
    except DBAPIError:
        return False
    return True


def damage_table(dynbeat, table, rows, *, key="id", leave=()):
    """Write each nonsense into another row; return those that the database accepts by row.

    ``rows`` are keys of rows, used up in their order. ``leave`` are columns that stay as they are.
    """
    kind, left, accepted = kind_of(dynbeat), iter(rows), {}
    columns = [each for each in METADATA.tables[table].columns if each.name not in (key, *leave)]
    with dynbeat.context.database.engine.begin() as connection:
        if kind == "mariadb":
            # As a session with a lax mode: strict ones refuse most of it.
            connection.execute(text("SET SESSION sql_mode = ''"))
        row = next(left)
        for column in columns:
            for value in values_for(column, kind):
                if write(connection, table, column.name, value, key=key, row=row):
                    accepted[row] = (column.name, str(value)[:40])
                    row = next(left)
        unused = text(f"DELETE FROM {table} WHERE {key} = :row")
        connection.execute(unused, [{"row": each} for each in (row, *left)])
        if kind == "mariadb":
            connection.execute(text("SET SESSION sql_mode = DEFAULT"))
    return accepted


def ids_of(dynbeat, statement):
    with dynbeat.context.database.engine.connect() as connection:
        return list(connection.scalars(text(statement)))


def create_many(dynbeat, owner, number, **fields):
    dynbeat.schedules.create_many(
        {"owner": owner, "name": f"n{index}", "task": "t", "trigger": MINUTELY, **fields}
        for index in range(number)
    )


def run_until_idle(beat):
    for _ in range(300):
        if beat.tick() > LOCKED_PAUSE:
            return
    pytest.fail("beat never became idle")


def good_runs(beat, number):
    """Return the names of the good schedules that were sent ``number`` times."""
    sent = {(run.run_id, run.name) for run in beat.publisher.sent if run.owner == "good"}
    return len(sent), len({name for _, name in sent}), number


def damage_schedules(dynbeat):
    create_many(dynbeat, "bad", 700, overlap="skip")
    ids = ids_of(dynbeat, "SELECT id FROM dynbeat_schedule WHERE owner = 'bad' ORDER BY id")
    return damage_table(dynbeat, "dynbeat_schedule", ids)


def damage_runs(dynbeat):
    """Damage runs that beat reads: unfinished ones of schedules that must not overlap."""
    ids = ids_of(dynbeat, "SELECT id FROM dynbeat_run WHERE owner = 'busy' ORDER BY id")
    return damage_table(dynbeat, "dynbeat_run", ids)


def damage_others(dynbeat, clock):
    """Damage holds, alerts, nodes and the rest, one row for each nonsense."""
    now = clock.now()
    rows = {
        "dynbeat_hold": {"owner": "held"},
        "dynbeat_alert": {
            "owner": "good",
            "name": "n0",
            "task": "t",
            "kind": "failing",
            "opened_at": now,
            "cause": "x",
            "unreported": "opened",
        },
        "dynbeat_change": {"action": "update", "owner": "good", "name": "n0"},
        "dynbeat_node": {"kind": "worker", "pid": 1, "started_at": now, "seen_at": now},
        "dynbeat_owner": {"timezone": "UTC"},
    }
    accepted = {}
    for name, base in rows.items():
        table = METADATA.tables[name]
        unique = {
            "dynbeat_alert": "schedule_id",
            "dynbeat_hold": "owner",
            "dynbeat_node": "name",
            "dynbeat_owner": "owner",
        }.get(name)
        with dynbeat.context.database.engine.begin() as connection:
            several = [
                {**base, unique: number if unique.endswith("_id") else f"row {number}"}
                if unique
                else base
                for number in range(1, 400)
            ]
            connection.execute(table.insert(), several)
        key = unique if name in ("dynbeat_node", "dynbeat_owner") else "id"
        keys = ids_of(dynbeat, f"SELECT {key} FROM {name} ORDER BY {key}")
        # Without an owner, a hold is one of everything.
        leave = ("owner",) if name == "dynbeat_hold" else ()
        accepted[name] = damage_table(dynbeat, name, keys, key=key, leave=leave)
    return accepted


PAGES = (
    *("overview", "schedules", "timeline", "runs", "alerts", "nodes", "health"),
    *("runs?group=error", "owner?owner=bad", "owner?owner=held", "schedules?state=quarantined"),
)
COMMANDS = (
    *("status", "list --all-owners", "runs --all-owners", "owner held", "status --alerts open"),
    *("changes --all-owners", "list --all-owners --state failing", "export --all-owners"),
)


def check_readers(dynbeat):
    """Each list, command and page answers."""
    for listed in ("list", "runs", "changes", "alerts", "holds"):
        call, page = getattr(dynbeat.schedules, listed), None
        for _ in range(20):
            page = call(limit=1_000, **({"after": page.cursor} if page is not None else {}))
            if page.cursor is None:
                break
    for command in COMMANDS:
        context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
        result = CliRunner().invoke(commands, [*command.split(), "--json"], obj=context)
        assert result.exception is None or isinstance(result.exception, SystemExit), command
        assert result.exit_code != 2, (command, result.output)
    with flower_pages(dynbeat, basic_auth=["alice:secret"]) as pages:
        pages.user, pages.password = "alice", "secret"
        for page in PAGES:
            assert pages.get(f"/dynbeat/{page}").status == 200, page


@each_database
def test_nonsense_affects_no_other_schedule(dynbeat, clock, beat):
    create_many(dynbeat, "good", GOOD)
    create_many(dynbeat, "busy", 400, overlap="skip")
    clock.advance(timedelta(minutes=1))
    run_until_idle(beat)
    assert good_runs(beat, 1) == (GOOD, GOOD, 1)

    damaged = damage_schedules(dynbeat)
    assert damaged
    assert damage_runs(dynbeat)
    assert damage_others(dynbeat, clock)

    alerts = ScheduleCheck(
        database=dynbeat.context.database,
        settings=dynbeat.context.settings,
        left_out=LeftOut("the alert of schedule"),
    )
    # The next fire time, the resend of runs that no worker started, the rescue.
    for number, pause in enumerate((60, 3_600, 60), start=2):
        clock.advance(timedelta(seconds=pause))
        run_until_idle(beat)
        alerts.run(clock.now())
        assert good_runs(beat, number) == (number * GOOD, GOOD, number)
    check_readers(dynbeat)
    for schedule_id, (column, value) in damaged.items():
        row = state_of(dynbeat, schedule_id)
        # A newer tz database may have a zone of this name, so the row is left out.
        is_left_out = column == "timezone"
        assert row is None or row.error or not row.is_due or is_left_out, (column, value)


def state_of(dynbeat, schedule_id):
    """Return the error of a schedule, and whether it is due; None for an unknown trigger."""
    query = text(
        "SELECT error, next_run_at IS NOT NULL AND next_run_at <= :now AS is_due, trigger_kind"
        " FROM dynbeat_schedule WHERE id = :id"
    ).bindparams(bindparam("now", dynbeat.context.clock.now(), UtcDateTime))
    with dynbeat.context.database.engine.connect() as connection:
        row = connection.execute(query, {"id": schedule_id}).one_or_none()
    return row if row is None or row.trigger_kind in KINDS else None


def left_pending(dynbeat, clock, beat, *names):
    """Record an overdue run of each schedule that is not sent."""
    mine = dynbeat.schedules.for_owner("user:42")
    for name in names:
        mine.create(name, task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    beat.publisher.fail_with(OSError("the broker is unreachable"))
    with dynbeat.context.database._session() as session:
        claim(session, now=clock.now(), settings=dynbeat.context.settings)
        session.commit()
    beat.publisher.fail_with(None)
    clock.advance(dynbeat.context.settings.dispatch_timeout)


def too_long(dynbeat, name):
    execute(dynbeat, f"UPDATE dynbeat_schedule SET args = '{TOO_LONG}' WHERE name = '{name}'")


def test_the_sweep_fails_the_run_of_an_unreadable_schedule_and_sends_the_others(
    dynbeat, mine, clock, beat, sent
):
    left_pending(dynbeat, clock, beat, "a", "bad", "c")
    too_long(dynbeat, "bad")

    run_until_idle(beat)

    assert sorted(run.name for run in sent) == ["a", "c"]
    (failed,) = mine.runs(status="failed")
    assert (failed.name, "args" in failed.error) == ("bad", True)
    assert "args" in mine.get("bad").error


def test_the_highest_run_count_stops_no_schedule(dynbeat, mine, clock, beat, sent):
    for name in ("a", "bad"):
        mine.create(name, task="t", trigger=MINUTELY)
    execute(dynbeat, f"UPDATE dynbeat_schedule SET run_count = {2**63 - 1} WHERE name = 'bad'")

    clock.advance(timedelta(minutes=1))
    run_until_idle(beat)

    assert sorted(run.name for run in sent) == ["a", "bad"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("args", value) for value in ("'{}'", "'7'", "'x'")),
        *(("max_run_time", value) for value in ("-1", "1e300", "'NaN'")),
        *(("end_at", value) for value in ("'infinity'", "'full moon'", "'0000-00-00'", "7")),
        *(("overlap", "'sometimes'"), ("enabled", "7"), ("name", "''")),
    ],
)
def test_the_tables_refuse_nonsense(dynbeat, mine, column, value):
    made = mine.create("n", task="t", trigger=MINUTELY)

    with pytest.raises(DBAPIError):
        execute(dynbeat, f"UPDATE dynbeat_schedule SET {column} = {value}")

    assert mine.get("n") == made


@each_database
def test_an_instant_of_a_run_outside_the_calendar_reads_as_an_end_of_it(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    run_until_idle(beat)
    value = {"sqlite": "full moon", "postgresql": "-infinity", "mariadb": "0000-00-00"}
    with dynbeat.context.database.engine.begin() as connection:
        if kind_of(dynbeat) == "mariadb":
            connection.execute(text("SET SESSION sql_mode = ''"))
        statement = text("UPDATE dynbeat_run SET sent_at = :value")
        connection.execute(statement, {"value": value[kind_of(dynbeat)]})
        if kind_of(dynbeat) == "mariadb":
            connection.execute(text("SET SESSION sql_mode = DEFAULT"))

    (run,) = mine.runs("n")

    assert run.sent_at == EARLIEST
