"""The values that the page of the form shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.api.field_types import Choice
from celery_dynbeat.api.fields import Field
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.flower.editor import fields
from celery_dynbeat.flower.editor.conflict import Conflict
from celery_dynbeat.flower.editor.picker import Picked
from celery_dynbeat.flower.editor.preview import PreviewView

_MAX_ROWS = 16


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
    picked: Picked = field(default_factory=Picked)
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
        names = [policy.name for policy in fields.POLICIES]
        return any(self.texts.get(name) or name in self.errors for name in names)

    def rows(self, name: str, *, least: int) -> int:
        """Return the height of the field of a text, in lines."""
        return min(_MAX_ROWS, max(least, self.texts[name].count("\n") + 1))

    def choices(self, policy: Field) -> Sequence[str]:
        """Return the values of a policy for its menu; none if a person types the value.

        An unknown stored value stays in the menu.
        """
        stored = self.texts.get(policy.name, "")
        known = list(policy.type.choices) if isinstance(policy.type, Choice) else []
        return [*known, stored] if known and stored and stored not in known else known
