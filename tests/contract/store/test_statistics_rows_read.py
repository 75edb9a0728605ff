"""The rows that the figures of a schedule and a timeline read have a bound."""

from datetime import date, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat.api import forecast
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.insights import charts
from celery_dynbeat.insights import timeline as timeline_module
from celery_dynbeat.insights.charts import calendar, run_times
from celery_dynbeat.insights.lists import calendar_schedules
from celery_dynbeat.insights.timeline import schedules_of_bin, timeline
from celery_dynbeat.store import rollups, scans
from celery_dynbeat.store.runs import run_spans
from celery_dynbeat.store.schedules import schedule_pages
from tests.support.applications import START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers
from tests.support.rollup import count_runs

ROWS = 20_000
#: Each limit of a query.
LIMIT = 20
#: Rows that a statement may read for each of its spans: those of the span, the schedule of each,
#: and the rows of temporary tables, which MariaDB counts too.
MOST = 5 * LIMIT
LIMITS = [
    (charts, "MAX_RUNS_PER_DAY"),
    (charts, "MAX_READ"),
    (charts, "MAX_FAILURES"),
    (timeline_module, "MAX_SCHEDULES"),
    (timeline_module, "MAX_LISTED"),
    (forecast, "MAX_FOLLOWED"),
    (timeline_module, "MAX_MARKS"),
    (run_spans, "MAX_SCANNED"),
    (run_spans, "MAX_SCANNED_WITH_TAG"),
    (scans, "MAX_SCANNED"),
    (schedule_pages, "MAX_COUNTED"),
    (rollups, "MAX_LIVE_RUNS"),
]
HOUR = timedelta(hours=1)
#: An instant a number of seconds before the start.
BEFORE = {
    "postgresql": "(TIMESTAMPTZ '2026-11-21 09:00:00Z' - ({0}) * INTERVAL '1 second')",
    "mariadb": "(TIMESTAMP '2026-11-21 09:00:00' - INTERVAL ({0}) SECOND)",
}
# A half of the schedules is due at midnight, the others within a week.
SCHEDULES = """
    INSERT INTO dynbeat_schedule
        (owner, name, task, trigger_kind, trigger_spec, tags, next_fire_at, next_run_at)
    SELECT CONCAT('user/', n % 3), CONCAT('n', n), CONCAT('t', n % 7), 'cron', '0 0 * * *',
        CASE WHEN n % 100 = 1 THEN '["vip"]' ELSE '[]' END{json}, {at}, {at}
    FROM {sequence}
"""
# A run each six seconds. Every second run is of the schedule with the id 1.
RUNS = """
    INSERT INTO dynbeat_run
        (id, schedule_id, owner, name, task, fire_at, created_at, finished_at, status)
    SELECT {id}, CASE WHEN n % 2 = 0 THEN 1 ELSE n END, 'user/1', CONCAT('n', n % 2 * n), 't1',
        {at}, {at}, {at}, CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'succeeded' END
    FROM {sequence}
"""
FILTERS = [{}, {"owner": "user/1"}, {"task": "t1"}, {"tag": "vip"}, {"owner": "few"}]
WINDOWS = [(-HOUR, HOUR), (-24 * HOUR, 0 * HOUR), (-48 * HOUR, 48 * HOUR), (14 * HOUR, 16 * HOUR)]


@pytest.fixture(params=["postgresql", "mariadb"])
def dynbeat(request):
    kind = request.param
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        fill(dynbeat, kind)
        count_runs(dynbeat, now=START)
        yield dynbeat


def fill(dynbeat, kind):
    sequence, before = numbers(kind, rows=ROWS), BEFORE[kind]
    ahead = before.format("-CASE WHEN n % 2 = 0 THEN 54000 ELSE n * 30 END")
    json = "::jsonb" if kind == "postgresql" else ""
    execute(
        dynbeat, SCHEDULES.format(sequence=sequence, at=ahead, json=json).replace("::", r"\:\:")
    )
    # The id of a run begins with its milliseconds.
    first = int(first_run_id(START).replace("-", "")[:12], 16)
    hex_of = "to_hex({})" if kind == "postgresql" else "LOWER(HEX({}))"
    milliseconds = hex_of.format(f"CAST({first} AS {'BIGINT' if json else 'SIGNED'}) - n * 6000")
    digits = f"LPAD({milliseconds}, 12, '0')"
    run_id = (
        f"CONCAT(SUBSTR({digits}, 1, 8), '-', SUBSTR({digits}, 9, 4), '-7000-8000-',"
        " LPAD(CAST(n AS CHAR(12)), 12, '0'))"
    )
    run_id = f"CAST({run_id} AS uuid)" if json else run_id
    execute(dynbeat, RUNS.format(sequence=sequence, id=run_id, at=before.format("n * 6")))
    dynbeat.calendars.upsert("holidays", dates=[date(2027, 1, 1)])
    links = "SELECT id, (SELECT MIN(id) FROM dynbeat_calendar), 1 FROM dynbeat_schedule"
    execute(
        dynbeat,
        f"INSERT INTO dynbeat_schedule_calendar (schedule_id, calendar_id, planned_with) {links}",
    )
    for table in ("dynbeat_schedule", "dynbeat_run", "dynbeat_schedule_calendar"):
        execute(dynbeat, f"ANALYZE {'' if json else 'TABLE'} {table}")


def rows_of(statements, call):
    before = len(statements)
    call()
    return max(each.rows for each in statements[before:])


def calls(dynbeat):
    """Yield a name, the call, and the most spans that one of its statements reads."""
    context, schedule = dynbeat.context, {"owner": "user/1", "name": "n1"}
    zone = ZoneInfo("Asia/Seoul")
    yield "calendar", lambda: calendar(context, zone=zone, **schedule), 7 * 26 + 29
    yield "calendar_schedules", lambda: calendar_schedules(context, name="holidays"), 1
    yield "run_times", lambda: run_times(context, **schedule), 60
    for (since, until), given in ((window, given) for window in WINDOWS for given in FILTERS):
        window = {"since": START + since, "until": START + until, **given}
        bounds = {"start_at": START + since, "end_at": START + until, **given}
        name = f"{since} {until} {given}"
        yield f"timeline {name}", lambda window=window: timeline(context, **window), 400
        yield f"bin {name}", lambda bounds=bounds: schedules_of_bin(context, limit=5, **bounds), 1


# It fills the tables with many rows.
@pytest.mark.timeout(600)
def test_each_statement_reads_a_bounded_number_of_rows(dynbeat, monkeypatch):
    for module, name in LIMITS:
        monkeypatch.setattr(module, name, LIMIT)
    dynbeat.schedules.for_owner("few").create("digest", task="t1", trigger="@daily")
    excessive, most = {}, {}
    with record_statements(dynbeat.context.database.engine) as statements:
        for name, call, spans in calls(dynbeat):
            rows = rows_of(statements, call)
            if rows > MOST * spans:
                excessive[name] = rows
            most[name] = rows

    assert excessive == {}
    assert max(most.values()) > LIMIT
