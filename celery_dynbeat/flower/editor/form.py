"""The form of a schedule, which is the form of the table FIELDS. PURE.

A field of the table with ``in_form`` is a control of the form: its kind, its default and its help
come from the row. CONTROLS has what a row does not say. The rule is the only control without a row.
``api.texts`` reads the texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from celery_dynbeat.api import texts
from celery_dynbeat.api.checks import check_name
from celery_dynbeat.api.field_types import Choice, JsonValue
from celery_dynbeat.api.fields import FIELDS, Field
from celery_dynbeat.api.results import ChangeInfo, FireTime, ScheduleInfo
from celery_dynbeat.common.errors import (
    ConflictError,
    InvalidArgumentError,
    LimitError,
)
from celery_dynbeat.common.settings import Settings

#: The fields of the table that the form has.
TABLE = {name: each for name, each in FIELDS.items() if each.in_form}
#: The fields with arguments of the task. They are left out if the pages hide arguments.
ARGUMENT_FIELDS = tuple(name for name, each in TABLE.items() if isinstance(each.type, JsonValue))
#: The fields below "Policies". Empty means the default.
POLICIES = tuple(each for each in TABLE.values() if each.group in {"limit", "policy"})
#: Field -> its label, in the order of the form.
LABELS = {
    "task": TABLE["task"].label,
    "rule": "Rule",
    **{name: each.label for name, each in TABLE.items()},
}
#: The texts of a new schedule.
EMPTY: Mapping[str, str] = dict.fromkeys(LABELS, "")
#: Fields of the request that no row has.
_OTHER_FIELDS = ("owner", "name", "reason")
#: Field of the form -> the field of the audit, where they differ.
_AUDITED = {
    "rule": "trigger",
    **{name: "options" for name, each in TABLE.items() if each.in_options},
}
_MAX_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """How the form shows a field, where its row does not say it.

    A control with ``rows`` is a text of several lines. ``note`` follows the label.
    ``attributes`` are those of the element.
    """

    rows: int = 0
    note: str = ""
    is_code: bool = False
    attributes: str = 'spellcheck="false"'


_NAME = 'maxlength="255" spellcheck="false"'
CONTROLS: Mapping[str, Control] = {
    "task": Control(
        is_code=True,
        attributes=(
            f'{_NAME} required list="db-tasks" placeholder="for example app.tasks.send_digest"'
        ),
    ),
    "description": Control(rows=2, attributes='maxlength="1024"'),
    "tags": Control(rows=2, note="one per line"),
    "args": Control(
        rows=2, note="JSON array", is_code=True, attributes='spellcheck="false" placeholder="[]"'
    ),
    "kwargs": Control(
        rows=3, note="JSON object", is_code=True, attributes='spellcheck="false" placeholder="{}"'
    ),
    "queue": Control(attributes=f'placeholder="default of the task" {_NAME}'),
    "priority": Control(attributes='inputmode="numeric" placeholder="none"'),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewView:
    """The preview of a rule. ``viewer_zone`` is None if its clock equals the clock of ``zone``."""

    sentence: str
    zone: ZoneInfo
    viewer_zone: ZoneInfo | None
    fire_times: Sequence[FireTime]
    warnings: Sequence[str]
    empty: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EditorForm:
    """The form of a schedule with the texts that a person typed.

    - ``info`` is None for a new schedule. ``version`` is the one that the person edits.
    - ``stored`` are the texts of the stored schedule, which ``texts`` are at first.
    - ``errors`` are by field. The error of ``""`` belongs to the whole form.
    - ``preview`` is None if there is no preview, and ``no_preview`` says why.
    - ``reason`` is for the audit.
    """

    owner: str
    name: str
    info: ScheduleInfo | None
    owner_zone: str
    version: int
    texts: Mapping[str, str]
    stored: Mapping[str, str]
    settings: Settings
    owners: Sequence[str] = ()
    tasks: Sequence[str] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    preview: PreviewView | None = None
    no_preview: str = ""
    conflict: Conflict | None = None
    is_paused: bool = False
    reason: str = ""

    @property
    def is_new(self) -> bool:
        """Whether saving creates a schedule."""
        return self.info is None

    @property
    def has_policies(self) -> bool:
        """Whether a policy is set or has an error, so that the page shows the policies."""
        return any(self.texts.get(each.name) or each.name in self.errors for each in POLICIES)

    def controls(self, *groups: str) -> Sequence[Field]:
        """Return the fields of groups of the table that the form shows."""
        found = [each for each in TABLE.values() if each.group in groups]
        return [each for each in found if each.name in self.texts and each.name != "task"]

    def rows(self, name: str, *, least: int) -> int:
        """Return the height of the field of a text, in lines."""
        return min(_MAX_ROWS, max(least, self.texts[name].count("\n") + 1))

    def choices(self, shown: Field) -> Sequence[str]:
        """Return the values of a field for its menu; none if a person types the value.

        An unknown stored value stays in the menu.
        """
        if not isinstance(shown.type, Choice):
            return []
        return list(dict.fromkeys(filter(None, (*shown.type.choices, self.texts[shown.name]))))


def control_of(shown: Field) -> Control:
    """Return how the form shows a field."""
    return CONTROLS.get(shown.name, Control())


def texts_of(
    info: ScheduleInfo, *, zone: ZoneInfo, hides_arguments: bool = False
) -> dict[str, str]:
    """Return the texts of all fields. Instants are on the clock of ``zone``, with their offset."""
    hidden = ARGUMENT_FIELDS if hides_arguments else ()
    return texts.texts_of(info, [name for name in LABELS if name not in hidden], zone=zone)


def check_names(owner: str, name: str) -> Mapping[str, str]:
    """Return the errors of the owner and the name of a new schedule."""
    errors = {}
    for named, value, empty in (("owner", owner, True), ("name", name, False)):
        try:
            check_name(named, value, empty=empty)
        except InvalidArgumentError as error:
            errors[named] = str(error)
    return errors


def field_of(error: InvalidArgumentError | ConflictError | LimitError) -> str:
    """Return the field of the form to which an error belongs, "" for the whole form."""
    if isinstance(error, LimitError):
        return "owner"
    named = texts.text_of(error)
    return named if named in {*LABELS, *_OTHER_FIELDS} else ""


def conflict_of(
    mine: Mapping[str, str], *, stored: Mapping[str, str], changes: Sequence[ChangeInfo]
) -> Conflict:
    """Return the fields in which ``mine`` and ``stored`` differ."""
    rows = []
    for name, text in stored.items():
        if mine[name] != text:
            audited = _AUDITED.get(name, name)
            edits = (change for change in changes if audited in (change.after or ()))
            last = next(edits, None)
            rows.append(ConflictRow(label=LABELS[name], mine=mine[name], stored=text, change=last))
    return Conflict(rows=rows, changes=changes)
