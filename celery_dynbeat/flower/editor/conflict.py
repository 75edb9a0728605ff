"""Two people edited the same schedule: what each of them changed, field by field."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery_dynbeat.api import ChangeInfo, ScheduleInfo
from celery_dynbeat.flower.editor.fields import LABELS, RULE_FIELDS

#: Field of the form -> the field of the audit, where they differ.
_AUDITED = {**dict.fromkeys(RULE_FIELDS, "trigger"), "queue": "options", "priority": "options"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRow:
    """A field with different texts. ``change`` is the last edit of it, or None if there is none.

    ``is_edited`` means that the viewer edited it, so that saving replaces the stored text.
    """

    label: str
    mine: str
    stored: str
    is_edited: bool
    change: ChangeInfo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The changes since the viewer opened the form. ``changes`` are the newest first."""

    rows: Sequence[ConflictRow]
    changes: Sequence[ChangeInfo]


def conflict_of(
    mine: Mapping[str, str],
    *,
    seen: Mapping[str, str],
    stored: Mapping[str, str],
    changes: Sequence[ChangeInfo],
) -> Conflict:
    """Return the fields in which ``mine`` and ``stored`` differ. ``seen`` was in the opened form.

    A field that ``seen`` does not have counts as edited.
    """
    rows = [
        ConflictRow(
            label=LABELS[name],
            mine=mine[name],
            stored=stored[name],
            is_edited=_is_edited(name, mine, seen),
            change=_last_change(name, changes),
        )
        for name in LABELS
        if name in mine and name in stored and mine[name] != stored[name]
    ]
    return Conflict(rows=rows, changes=changes)


def merged(
    mine: Mapping[str, str], *, seen: Mapping[str, str], stored: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the texts to save: the viewer's edits and the stored texts.

    The kind, the rule and the zone belong together, so an edit of one of them keeps all three.
    """
    has_rule = any(_is_edited(name, mine, seen) for name in RULE_FIELDS)
    return {
        name: text
        if _is_edited(name, mine, seen) or (has_rule and name in RULE_FIELDS)
        else stored.get(name, text)
        for name, text in mine.items()
    }


def changes_since(
    info: ScheduleInfo, changes: Iterable[ChangeInfo], *, version: int
) -> Sequence[ChangeInfo]:
    """Return the edits of this schedule after ``version``."""
    return [
        change
        for change in changes
        if change.after is not None
        and change.changed_at >= info.created_at
        and _version(change.after) > version
    ]


def _version(after: Mapping[str, object]) -> int:
    version = after.get("version")
    return version if isinstance(version, int) else 0


def _is_edited(name: str, mine: Mapping[str, str], seen: Mapping[str, str]) -> bool:
    return mine.get(name) != seen.get(name)


def _last_change(name: str, changes: Iterable[ChangeInfo]) -> ChangeInfo | None:
    audited = _AUDITED.get(name, name)
    return next((change for change in changes if audited in (change.after or ())), None)
