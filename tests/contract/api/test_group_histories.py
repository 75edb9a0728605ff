"""The runs, edits, alerts and forecast of a group of owners."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import AlertNotFoundError, InvalidScheduleError, RunNotFoundError
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.db.alert_models import Alert
from celery_dynbeat.insights.statistics.failures import failures
from celery_dynbeat.insights.statistics.owner_usage import owner_usage
from celery_dynbeat.store import group_pages
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.store.schedules import planned_runs
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter
from celery_dynbeat.store.span_reads import Span
from tests.contract.api.test_groups import GROUP, INNER, OTHERS, OWNERS
from tests.support.applications import MINUTELY, START, execute
from tests.support.executed_statements import record_statements

MINUTES = 4


@pytest.fixture
def schedules(dynbeat, beat, clock):
    """Give owners with runs at four minutes; each owner has other fire times."""
    for offset, owner in enumerate((*OWNERS, *OTHERS)):
        mine = dynbeat.schedules.for_owner(owner)
        for name in "xy":
            mine.create(name, task=f"t.{name}", trigger=MINUTELY, jitter=0)
        execute(
            dynbeat,
            "UPDATE dynbeat_schedule SET next_fire_at = :at, next_run_at = :at, anchor_at = :at"
            " WHERE owner = :owner",
            owner=owner,
            at=START + timedelta(seconds=offset + 1),
        )
    for _ in range(MINUTES):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    return dynbeat.schedules


def all_pages(call, **how):
    """Return the pages of a list."""
    pages, after = [], None
    while True:
        pages.append(call(after=after, **how))
        after = pages[-1].cursor
        if after is None:
            return pages


def key(run):
    return run.scheduled_for, run.id


@pytest.mark.parametrize(("group", "owners"), [(GROUP, OWNERS), (INNER, OWNERS[1:3])])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_the_runs_of_a_group_are_those_of_its_owners_newest_first(schedules, group, owners, limit):
    expected = [run for owner in owners for run in schedules.for_owner(owner).runs()]
    expected.sort(key=key, reverse=True)

    pages = all_pages(schedules.for_group(group).runs, limit=limit)

    assert [run for page in pages for run in page] == expected
    assert {len(page) for page in pages[:-1]} <= {limit}
    assert all_pages(schedules.runs, owner=group, limit=limit) == pages
    assert len(expected) == 2 * MINUTES * len(owners)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_larger_group_is_listed_in_parts(schedules, monkeypatch, limit):
    monkeypatch.setattr(group_pages, "MAX_OWNERS", 2)
    first, second = (
        sorted((r for o in part for r in schedules.for_owner(o).runs()), key=key, reverse=True)
        for part in (OWNERS[:2], OWNERS[2:])
    )

    pages = all_pages(schedules.for_group(GROUP).runs, limit=limit)

    assert [run for page in pages for run in page] == [*first, *second]


@pytest.mark.parametrize("call", ["runs", "changes", "alerts"])
def test_owners_that_appear_between_two_pages_repeat_and_hide_no_row(
    with_alerts, dynbeat, monkeypatch, call
):
    monkeypatch.setattr(group_pages, "MAX_OWNERS", 3)
    listed = getattr(with_alerts.for_group(GROUP), call)
    expected = {row.id for page in all_pages(listed) for row in page}
    page, found, new = listed(limit=1), [], []
    while True:
        found += page
        if page.cursor is None:
            break
        if len(new) < 12:
            for last in "09":
                new.append(owner := f"org:7/{len(new):02}{last}")
                (schedule,) = with_alerts.create_many(
                    [{"owner": owner, "name": "x", "task": "t", "trigger": MINUTELY}]
                )
                with_alerts.for_owner(owner).run_now("x")
                add_alerts(dynbeat, [schedule])
        page = listed(limit=1, after=page.cursor)

    ids = [row.id for row in found]
    assert expected <= set(ids)
    assert len(ids) == len(set(ids))


def test_a_cursor_of_a_group_that_grew_by_many_owners_is_refused(schedules, monkeypatch):
    monkeypatch.setattr(group_pages, "MAX_OWNERS", 2)
    monkeypatch.setattr(group_pages, "MAX_RESUMED_OWNERS", 4)
    of_group = schedules.for_group(GROUP)
    cursor = of_group.runs(limit=1).cursor
    for number in range(5):
        mine = schedules.for_owner(f"org:7/0{number}")
        mine.create("x", task="t", trigger=MINUTELY)
        mine.run_now("x")

    with pytest.raises(InvalidScheduleError, match="more than 4 owners") as caught:
        of_group.runs(limit=1, after=cursor)

    assert caught.value.field == "after"


@pytest.mark.parametrize("scanned", [3, 10_000])
def test_filters_of_the_runs_of_a_group_match_as_for_one_owner(schedules, monkeypatch, scanned):
    monkeypatch.setattr(run_pages, "MAX_SCANNED", scanned)
    filters = (
        {"task": "t.x"},
        {"name": "y"},
        {"status": "failed"},
        {"since": START + timedelta(minutes=1, seconds=2), "until": START + timedelta(minutes=3)},
    )
    for matching in filters:
        expected = {
            run.id
            for owner in OWNERS
            for page in all_pages(schedules.for_owner(owner).runs, **matching)
            for run in page
        }
        pages = all_pages(schedules.for_group(GROUP).runs, limit=2, **matching)
        found = [run.id for page in pages for run in page]

        assert sorted(found) == sorted(expected)
        assert all(list(page) == sorted(page, key=key, reverse=True) for page in pages)


@pytest.mark.parametrize("scanned", [5, 10_000])
def test_unfinished_runs_of_a_group_are_found(schedules, monkeypatch, scanned):
    schedules.for_owner("org:7/a").run_now("x")
    schedules.for_owner("org:70/a").run_now("x")
    monkeypatch.setattr(run_pages, "MAX_SCANNED", scanned)
    of_group = schedules.for_group(GROUP)

    pages = all_pages(of_group.runs, status="pending", limit=1)
    (run,) = [run for page in pages for run in page]
    sent = [run for page in all_pages(of_group.runs, status="sent", limit=3) for run in page]

    assert (run.owner, run.origin) == ("org:7/a", "manual")
    assert {run.owner for run in sent} == set(OWNERS)
    assert len(sent) == len({run.id for run in sent}) == 2 * MINUTES * len(OWNERS)


def test_the_count_of_the_runs_of_a_group(schedules, monkeypatch):
    of_group, total = schedules.for_group(GROUP), 2 * MINUTES * len(OWNERS)
    since = START + timedelta(minutes=3)

    assert of_group.count_runs().count == schedules.count_runs(owner=GROUP).count == total
    assert of_group.count_runs(task="t.x").count == total // 2
    assert of_group.count_runs(status="sent").count == total
    assert of_group.count_runs(since=since).count == len(of_group.runs(since=since))
    monkeypatch.setattr(run_pages, "MAX_SCANNED", 5)
    assert str(of_group.count_runs()) == str(of_group.count_runs(since=START)) == "5+"
    monkeypatch.setattr(run_pages, "MAX_SCANNED", 10_000)
    monkeypatch.setattr(run_pages, "MAX_GROUP_OWNERS", 1)
    assert not of_group.count_runs(since=START).exact


def test_a_group_has_the_runs_of_its_owners_and_no_others(schedules):
    of_group = schedules.for_group(GROUP)
    (mine,) = schedules.for_owner("org:7/z").runs(limit=1)
    (other,) = schedules.for_owner("org:70").runs(limit=1)

    assert of_group.get_run(mine.id) == mine
    with pytest.raises(RunNotFoundError, match="group 'org:7/'"):
        of_group.get_run(other.id)
    for owner in ("org:70", "org:7", ""):
        with pytest.raises(InvalidScheduleError, match="these calls, group 'org:7/'"):
            of_group.runs(owner=owner)
        with pytest.raises(InvalidScheduleError, match="these calls, group 'org:7/'"):
            of_group.changes(owner=owner)


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("owners", [2, 50])
def test_the_edits_of_a_group_are_those_of_its_owners_and_its_own(
    schedules, clock, monkeypatch, limit, owners
):
    for owner in (*reversed(OWNERS), "org:70", "org:7"):
        clock.advance(1)
        schedules.for_owner(owner).pause("x", actor="alice")
    schedules.for_group(GROUP).hold(actor="bob")
    schedules.for_owner("org:70/a").hold(actor="bob")
    expected = [
        change for owner in OWNERS for change in all_pages(schedules.for_owner(owner).changes)[0]
    ]
    monkeypatch.setattr(group_pages, "MAX_OWNERS", owners)
    of_group = schedules.for_group(GROUP)

    pages = all_pages(of_group.changes, limit=limit)
    found = [change for page in pages for change in page]
    own = [change for change in found if change.owner == GROUP]

    assert [(change.action, change.actor) for change in own] == [("hold", "bob")]
    assert {change.id for change in found} == {change.id for change in [*expected, *own]}
    assert len(found) == len(expected) + 1
    assert all(
        list(page) == sorted(page, key=lambda each: (each.changed_at, each.id), reverse=True)
        for page in pages
    )
    assert {change.owner for change in of_group.changes(action="pause")} <= set(OWNERS)
    by_alice = [each for page in all_pages(of_group.changes, actor="alice") for each in page]
    assert sorted(each.owner for each in by_alice) == sorted(OWNERS)
    assert [each.name for page in all_pages(of_group.changes, name="y") for each in page] == [
        "y"
    ] * len(OWNERS)


@pytest.fixture
def with_alerts(schedules, dynbeat):
    """Give an open and a recovered alert to each owner."""
    add_alerts(dynbeat, [schedules.for_owner(owner).list()[0] for owner in (*OWNERS, *OTHERS)])
    return schedules


def add_alerts(dynbeat, schedules):
    with Session(dynbeat.context.database.engine) as session, session.begin():
        for schedule in schedules:
            for kind in (AlertKind.FAILED, AlertKind.LATE):
                is_open = kind is AlertKind.FAILED
                session.add(
                    Alert(
                        schedule_id=schedule.id,
                        owner=schedule.owner,
                        name=schedule.name,
                        kind=kind,
                        opened_at=START,
                        last_at=START,
                        target="default",
                        checked_at=START if is_open else None,
                        recovered_at=None if is_open else START,
                    )
                )


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("owners", [2, 50])
def test_the_alerts_of_a_group_are_those_of_its_owners(with_alerts, monkeypatch, limit, owners):
    monkeypatch.setattr(group_pages, "MAX_OWNERS", owners)
    of_group = with_alerts.for_group(GROUP)

    pages = all_pages(of_group.alerts, limit=limit)
    of_all = [each for page in all_pages(of_group.alerts, only_open=False) for each in page]

    assert [each.owner for page in pages for each in page] == list(OWNERS)
    assert sorted(each.owner for each in of_all) == sorted([*OWNERS, *OWNERS])


def test_only_an_alert_of_the_group_is_acknowledged_and_snoozed(with_alerts, clock):
    of_group = with_alerts.for_group(GROUP)
    (theirs,) = with_alerts.for_owner("org:70/a").alerts()
    until = clock.now() + timedelta(hours=1)

    for alert in of_group.alerts():
        assert of_group.snooze_alert(alert.id, until=until).snoozed_until == until
        assert of_group.acknowledge_alert(alert.id, actor="alice").acknowledged_by == "alice"
    with pytest.raises(AlertNotFoundError, match="group 'org:7/'"):
        of_group.acknowledge_alert(theirs.id)
    with pytest.raises(AlertNotFoundError):
        of_group.snooze_alert(theirs.id, until=until)
    assert with_alerts.for_owner("org:70/a").alerts() == [theirs]


@pytest.mark.parametrize("scanned", [3, 10_000])
def test_the_forecast_of_a_group_counts_the_runs_of_its_owners(
    schedules, clock, monkeypatch, scanned
):
    # Less than the schedules of the group: they are then read by their next run.
    monkeypatch.setattr(planned_runs, "MAX_SCANNED", scanned)
    until = clock.now() + timedelta(hours=1)
    single = [schedules.for_owner(owner).forecast(until=until, per="hour").rows for owner in OWNERS]
    found = schedules.for_group(GROUP).forecast(until=until, per="hour")

    assert found.schedules == 2 * len(OWNERS)
    assert sum(row.runs for row in found.rows) == sum(r.runs for rows in single for r in rows)
    assert schedules.forecast(owner=GROUP, until=until, per="hour").rows == found.rows


@pytest.mark.parametrize("owner", [GROUP, INNER, "org:70/", "org:7/a", None])
def test_the_schedules_of_a_group_that_run_next_in_a_span_are_counted(
    schedules, dynbeat, clock, owner
):
    span = Span(clock.now(), clock.now() + timedelta(minutes=2))
    matching = ScheduleFilter(owner=owner)

    (found,) = dynbeat.context.database.read(
        lambda session: planned_runs.count_in_spans(
            session, matching=matching, spans=[span], limit=100
        )
    )

    assert found.planned == schedules.count(owner=owner).count


@pytest.mark.usefixtures("schedules")
def test_the_statistics_of_a_group_count_the_runs_of_its_owners(dynbeat, clock):
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = 'failed', error = 'x', finished_at = scheduled_for,"
        " overdue_at = NULL WHERE name = 'x'",
    )
    span = {"since": START, "until": clock.now() + timedelta(seconds=1)}

    found = failures(dynbeat.context, owner=GROUP, **span)
    usage = owner_usage(dynbeat.context, owner=GROUP, **span)

    (group,) = found.groups
    assert (group.count, group.owners, found.exact) == (MINUTES * len(OWNERS), len(OWNERS), True)
    assert (usage.runs.count, usage.failed.count) == (2 * group.count, group.count)


@pytest.mark.usefixtures("schedules")
def test_a_statistic_of_a_group_says_if_it_did_not_read_all_runs(dynbeat, monkeypatch):
    monkeypatch.setattr(run_pages, "MAX_SCANNED", 8)
    assert not failures(dynbeat.context, owner=GROUP, since=START).exact
    monkeypatch.setattr(run_pages, "MAX_SCANNED", 10_000)
    assert failures(dynbeat.context, owner=GROUP, since=START).exact
    monkeypatch.setattr(run_pages, "MAX_GROUP_OWNERS", 3)
    assert not failures(dynbeat.context, owner=GROUP, since=START).exact


@pytest.mark.parametrize("call", ["runs", "changes", "alerts"])
def test_a_cursor_leads_out_of_no_group(with_alerts, call):
    of_other = getattr(with_alerts.for_group("org:70/"), call)
    for page in all_pages(getattr(with_alerts.for_group(GROUP), call), limit=1):
        if page.cursor is not None:
            assert {each.owner for each in of_other(after=page.cursor)} <= {"org:70/a"}
    cursor = getattr(with_alerts.for_owner("org:7/a"), call)(limit=1).cursor
    if cursor is not None:
        with pytest.raises(InvalidScheduleError, match="cursor of another list"):
            of_other(after=cursor)


def test_a_list_of_unfinished_runs_that_became_many_repeats_and_hides_no_run(
    schedules, monkeypatch
):
    monkeypatch.setattr(group_pages, "MAX_OWNERS", 2)
    of_group, expected = schedules.for_group(GROUP), 2 * MINUTES * len(OWNERS)
    page = of_group.runs(status="sent", limit=3)
    found = [run.id for run in page]
    monkeypatch.setattr(run_pages, "MAX_SCANNED", 5)

    while page.cursor is not None:
        page = of_group.runs(status="sent", limit=3, after=page.cursor)
        found += [run.id for run in page]

    assert len(found) == len(set(found)) == expected


def test_a_list_of_unfinished_runs_that_became_many_reads_few_of_them(dynbeat, clock, monkeypatch):
    if dynbeat.context.database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite does not count the rows that a statement reads")
    monkeypatch.setattr(run_pages, "MAX_SCANNED", 20)
    inner, outer = dynbeat.schedules.for_owner("o/a"), dynbeat.schedules.for_owner("p")
    for owner, number in ((inner, 3), (outer, 0)):
        owner.create("n", task="t", trigger=MINUTELY)
        for _ in range(number):
            owner.run_now("n")
            clock.advance(1)
    group = dynbeat.schedules.for_group("o/")
    first = group.runs(status="pending", limit=2)
    for _ in range(100):
        outer.run_now("n")
        clock.advance(1)

    with record_statements(dynbeat.context.database.engine) as statements:
        second = group.runs(status="pending", limit=2, after=first.cursor)

    assert len({run.id for run in (*first, *second)}) == 3
    assert sum(each.rows for each in statements) < 50
