"""A file of schedules is applied in one transaction, and an export is applied without a change."""

from collections import Counter
from datetime import timedelta

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_dynbeat import Cron, Every, Once
from celery_dynbeat.beat import config_sync
from celery_dynbeat.cli.apply import ChangedMeanwhileError, InvalidDeclarationsError, apply
from celery_dynbeat.cli.file_format import declared_file, file_lines
from celery_dynbeat.testing import FrozenClock
from tests.support.applications import MINUTELY, START, execute
from tests.support.property_application import (
    EXAMPLE_FACTOR,
    delete_all_rows,
    prepared_application,
)
from tests.support.schedule_strategies import FIELDS, NAMES, OWNERS
from tests.support.suites import each_database

FILE = """
schedules:
  - name: digest
    owner: user:42
    task: mail.digest
    trigger: CRON_TZ=Asia/Seoul 0 9 * * mon-fri
    kwargs: {user_id: 42}
    queue: mail
    tags: [mail]
  - name: sync
    owner: user:42
    task: sync
    trigger: PT5M
"""


def run(dynbeat, text, **options):
    return apply(dynbeat, declared_file(text, file="f.yaml", owner=None).schedules, **options)


def actions(edits):
    return [(edit.action, edit.name) for edit in edits]


def exported(dynbeat, *, owner=None, as_json=False):
    omitted = Counter()
    schedules = dynbeat.schedules.list(owner=owner, limit=1000)
    text = "".join(file_lines(schedules, owner=owner, as_json=as_json, omitted=omitted))
    return text, omitted


@each_database
def test_a_file_creates_its_schedules_and_a_second_time_changes_nothing(dynbeat, mine):
    assert actions(run(dynbeat, FILE)) == [("create", "digest"), ("create", "sync")]
    before = [mine.get("digest"), mine.get("sync")]

    assert actions(run(dynbeat, FILE)) == [("keep", "digest"), ("keep", "sync")]
    assert [mine.get("digest"), mine.get("sync")] == before
    assert before[0].trigger == Cron("0 9 * * mon-fri", timezone="Asia/Seoul")
    assert before[0].options == {"queue": "mail"}


def test_a_field_that_the_file_leaves_out_gets_its_default(dynbeat, mine):
    run(dynbeat, FILE)
    mine.update("sync", window=5, description="by hand", priority=3)

    (edit,) = [each for each in run(dynbeat, FILE) if each.action != "keep"]

    assert sorted(edit.changed()) == [
        ("description", "by hand", None),
        ("priority", 3, None),
        ("window", 5.0, None),
    ]
    assert (mine.get("sync").window, mine.get("sync").options) == (None, {})


def test_a_schedule_stays_paused_if_the_file_does_not_say_enabled(dynbeat, mine):
    run(dynbeat, FILE)
    mine.pause("sync", reason="incident")

    assert actions(run(dynbeat, FILE))[1] == ("keep", "sync")
    assert mine.get("sync").paused_reason == "incident"
    assert actions(run(dynbeat, FILE + "    enabled: true"))[1] == ("update", "sync")
    assert mine.get("sync").enabled


def test_the_file_can_pause_until_an_instant_that_then_ends_the_pause(dynbeat, mine, clock):
    end = START + timedelta(hours=1)
    paused = FILE + f"    enabled: false\n    paused_until: '{end.isoformat()}'"

    run(dynbeat, paused)

    assert mine.get("sync").paused_until == end
    assert actions(run(dynbeat, paused))[1] == ("keep", "sync")
    clock.advance(timedelta(hours=1))
    run(dynbeat, paused)
    assert mine.get("sync").enabled


def test_prune_deletes_the_other_schedules_of_these_owners_only(dynbeat, mine):
    other = dynbeat.schedules.for_owner("user:7")
    for owner in (mine, other):
        owner.create("old", task="t", trigger=MINUTELY)

    edits = run(dynbeat, FILE, prune_owners=["user:42"])

    assert actions(edits)[-1] == ("delete", "old")
    assert [each.name for each in mine.list()] == ["digest", "sync"]
    assert [each.name for each in other.list()] == ["old"]


def test_with_a_tag_prune_deletes_only_schedules_with_the_tag(dynbeat, mine):
    mine.create("by_hand", task="t", trigger=MINUTELY)
    mine.create("old", task="t", trigger=MINUTELY, tags=["git"])

    run(dynbeat, FILE, tag="git", prune_owners=["user:42"])

    assert [(each.name, each.tags) for each in mine.list()] == [
        ("by_hand", []),
        ("digest", ["git", "mail"]),
        ("sync", ["git"]),
    ]


def test_prune_deletes_no_schedule_that_was_added_after_the_confirmation(dynbeat, mine):
    run(dynbeat, FILE)
    mine.create("old", task="t", trigger=MINUTELY)
    deletes = {
        (e.owner, e.name)
        for e in run(dynbeat, FILE, prune_owners=["user:42"], dry_run=True)
        if e.action == "delete"
    }
    mine.create("new", task="t", trigger=MINUTELY)
    confirmed = {"prune_owners": ["user:42"], "may_delete": deletes}

    with pytest.raises(ChangedMeanwhileError, match="'new' of owner 'user:42' was added"):
        run(dynbeat, FILE.replace("PT5M", "PT6M"), **confirmed)

    assert [each.name for each in mine.list()] == ["digest", "new", "old", "sync"]
    assert mine.get("sync").trigger == Every(300)
    mine.delete("new")
    assert ("delete", "old") in actions(run(dynbeat, FILE, **confirmed))


def test_a_dry_run_shows_the_same_edits_and_changes_nothing(dynbeat, mine):
    mine.create("old", task="t", trigger=MINUTELY)

    shown = run(dynbeat, FILE, prune_owners=["user:42"], dry_run=True)

    assert [each.name for each in mine.list()] == ["old"]
    assert shown == run(dynbeat, FILE, prune_owners=["user:42"])


def test_refused_schedules_are_all_named_with_their_lines_and_nothing_is_written(dynbeat):
    text = (
        FILE
        + """    window: fast
  - name: yearly
    owner: user:42
    task: t
    trigger: 99 9 * * *
  - name: zoned
    task: t
    trigger: TZ=Asia/Seoul PT5M
  - name: naive
    task: t
    trigger: PT5M
    start_at: 2026-11-21
  - {name: reason, task: t, trigger: PT5M, paused_reason: why}
"""
    )

    with pytest.raises(InvalidDeclarationsError) as raised:
        run(dynbeat, text)

    fields = ["window", "trigger", "trigger", "start_at", "paused_reason"]
    assert [error.field for error in raised.value.errors] == fields
    assert str(raised.value).startswith("f.yaml: schedule 'sync': window = 'fast': must be")
    assert not dynbeat.schedules.list()


def test_entries_of_beat_schedule_are_neither_changed_nor_pruned_nor_exported(dynbeat):
    dynbeat.app.conf.update(
        result_expires=None, beat_schedule={"nightly": {"task": "t", "schedule": 3600.0}}
    )
    config_sync.sync(dynbeat.context)
    text = "schedules:\n  - {name: nightly, task: other, trigger: PT5M}"

    with pytest.raises(InvalidDeclarationsError, match=r"schedule 'nightly': .*beat"):
        run(dynbeat, text)
    assert run(dynbeat, "schedules: []", prune_owners=[""]) == []
    text, omitted = exported(dynbeat)
    assert "schedules: []" in text
    assert omitted == {"follow an entry of beat_schedule": 1}


def test_an_export_leaves_out_what_apply_would_refuse(dynbeat, mine, clock, beat):
    mine.create("done", task="t", trigger=Once(START + timedelta(minutes=1)))
    mine.create("damaged", task="t", trigger=MINUTELY)
    mine.create("live", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'x' WHERE name = 'damaged'")
    clock.advance(timedelta(minutes=2))
    beat.run_until_idle()

    text, omitted = exported(dynbeat)

    assert [each["name"] for each in yaml.safe_load(text)["schedules"]] == ["live"]
    assert omitted == {"are finished": 1, "have a damaged trigger": 1}


#: What a file cannot say: when a row was written, and where its rule is.
NOT_IN_A_FILE = {"id", "version", "created_at", "updated_at", "next_run_at"}


def content(dynbeat):
    return [
        {key: value for key, value in info.to_dict().items() if key not in NOT_IN_A_FILE}
        for info in dynbeat.schedules.list(limit=1000)
    ]


def export_is_read_back(dynbeat, schedules, *, as_json):
    for (owner, name), fields in schedules.items():
        dynbeat.schedules.for_owner(owner).create(name, **fields)
    before = content(dynbeat)
    text, _ = exported(dynbeat, as_json=as_json)

    assert {edit.action for edit in run(dynbeat, text)} == {"keep"}
    delete_all_rows(dynbeat)
    assert {edit.action for edit in run(dynbeat, text)} == {"create"}
    assert content(dynbeat) == before
    assert exported(dynbeat, as_json=as_json)[0] == text


def check_round_trip(url, *, examples):
    with prepared_application(url, clock=FrozenClock(START)) as dynbeat:

        @settings(max_examples=examples * EXAMPLE_FACTOR, suppress_health_check=list(HealthCheck))
        @given(
            schedules=st.dictionaries(st.tuples(OWNERS, NAMES), FIELDS, min_size=1, max_size=3),
            as_json=st.booleans(),
        )
        def each(schedules, as_json):
            delete_all_rows(dynbeat)
            export_is_read_back(dynbeat, schedules, as_json=as_json)

        each()


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_apply_reads_what_export_writes_on_sqlite(sqlite_url):
    check_round_trip(sqlite_url, examples=100)
