"""Two people edited the same schedule: what each of them changed, field by field."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery_dynbeat.api import ChangeInfo, ScheduleInfo
from celery_dynbeat.flower.editor.fields import LABELS

#: Field of the form -> the field of the audit, where they differ.
_AUDITED = {"rule": "trigger", "queue": "options", "priority": "options"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRow:
    """A field with different texts. ``change`` is the last edit of it, or None if there is none."""

    label: str
    mine: str
    stored: str
    change: ChangeInfo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The changes since the viewer opened the form. ``changes`` are the newest first."""

    rows: Sequence[ConflictRow]
    changes: Sequence[ChangeInfo]


def conflict_of(
    mine: Mapping[str, str], *, stored: Mapping[str, str], changes: Sequence[ChangeInfo]
) -> Conflict:
    """Return the fields in which ``mine`` and ``stored`` differ."""
    rows = []
    for name, text in stored.items():
        if mine[name] != text:
            audited = _AUDITED.get(name, name)
            edits = (change for change in changes if audited in (change.after or ()))
            row = ConflictRow(
                label=LABELS[name], mine=mine[name], stored=text, change=next(edits, None)
            )
            rows.append(row)
    return Conflict(rows=rows, changes=changes)


def changes_since(
    info: ScheduleInfo, changes: Iterable[ChangeInfo], *, version: int
) -> Sequence[ChangeInfo]:
    """Return the edits of this schedule after ``version``."""
    return [
        change
        for change in changes
        if change.changed_at >= info.created_at and (change.after or {}).get("version", 0) > version
    ]
