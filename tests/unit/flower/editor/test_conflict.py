"""Two people edit one schedule: which fields differ, and who changed them."""

from datetime import UTC, datetime

from celery_dynbeat.api.results import ChangeInfo
from celery_dynbeat.flower.editor.form import EMPTY, conflict_of

AT = datetime(2026, 11, 22, tzinfo=UTC)
SEEN = {**EMPTY, "rule": "0 9 * * *", "description": "old", "queue": "a"}


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

    rows = conflict_of(mine, stored=stored, changes=changes).rows

    shown = {row.label: (row.mine, row.stored, row.change and row.change.actor) for row in rows}
    assert shown == {
        "Rule": ("0 9 * * *", "0 10 * * *", "bob"),
        "Description": ("mine", "theirs", "carol"),
        "Queue": ("b", "a", None),
    }
