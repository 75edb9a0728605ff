"""Two people edit one schedule: the form keeps the edits of the viewer over what is stored."""

from datetime import UTC, datetime

from celery_dynbeat.api import ChangeInfo
from celery_dynbeat.flower.editor.conflict import conflict_of, merged
from celery_dynbeat.flower.editor.stored import EMPTY

AT = datetime(2026, 11, 22, tzinfo=UTC)
SEEN = {**EMPTY, "kind": "cron", "rule": "0 9 * * *", "description": "old", "queue": "a"}


def change(number, actor, **after):
    return ChangeInfo(
        id=number,
        changed_at=AT,
        owner="",
        name="n",
        action="update",
        actor=actor,
        reason="",
        before={},
        after=after,
    )


def test_each_differing_field_names_who_changed_it_last():
    mine = {**SEEN, "description": "mine", "queue": "b"}
    stored = {**SEEN, "description": "theirs", "rule": "0 10 * * *"}
    changes = [
        change(3, "carol", description="theirs"),
        change(2, "bob", description="x", trigger={}),
    ]

    rows = conflict_of(mine, seen=SEEN, stored=stored, changes=changes).rows

    shown = {row.label: (row.is_edited, row.change and row.change.actor) for row in rows}
    assert shown == {
        "Rule": (False, "bob"),
        "Description": (True, "carol"),
        "Queue": (True, None),
    }


def test_fields_that_the_viewer_did_not_edit_have_the_stored_texts():
    mine = {**SEEN, "description": "mine"}
    stored = {**SEEN, "description": "theirs", "queue": "theirs"}

    assert merged(mine, seen=SEEN, stored=stored) == {
        **SEEN,
        "description": "mine",
        "queue": "theirs",
    }


def test_an_edit_of_one_part_of_the_rule_keeps_all_parts():
    mine = {**SEEN, "timezone": "Asia/Seoul"}
    stored = {**SEEN, "kind": "every", "rule": "PT5M"}

    assert merged(mine, seen=SEEN, stored=stored) == mine


def test_without_the_opened_texts_all_fields_count_as_edited():
    mine = {**SEEN, "description": "mine"}

    assert merged(mine, seen={}, stored=EMPTY) == mine
