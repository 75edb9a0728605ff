"""The results of the API's calls for changes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.states import Action
from celery_dynbeat.triggers import trigger_from_json

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInfo(Info):
    """One edit, for the audit. ``changed_at`` is aware and in UTC.

    - ``owner`` is None for an edit of everything. ``name`` is ``""`` for an edit of the owner.
    - ``before`` and ``after`` are the changed fields, named and written as in
      ``ScheduleInfo.to_dict``. A new schedule has no ``before``, and a deleted one has no
      ``after``.
    - ``actor`` and ``reason`` are ``""`` if none was given.
    - ``text`` is the changed fields in one line, with a trigger in words:
      ``trigger: Every 5 minutes -> Every hour; window: 5.0 -> null``. It is ``""`` for a new or
      deleted schedule.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("text",)

    id: int
    changed_at: datetime
    owner: str | None
    name: str
    action: str
    actor: str
    reason: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    @classmethod
    def of(cls, row: "Change") -> "ChangeInfo":
        """Return a snapshot of a row."""
        special: dict[str, Any] = {"before": row.old_values, "after": row.new_values}
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

    @property
    def text(self) -> str:
        """The changed fields in one line."""
        before, after = self.before or {}, self.after or {}
        if self.before is None:
            made = {} if self.action == Action.CREATE else after
            return "; ".join(f"{name}: {value_text(value, name)}" for name, value in made.items())
        if self.after is None:
            return ""
        return "; ".join(
            f"{name}: {value_text(before.get(name), name)} -> {value_text(after.get(name), name)}"
            for name in {**before, **after}
            if name not in _INTERNAL
        )


#: Fields of a change that tell a reader nothing.
_INTERNAL = ("version",)


def value_text(value: Any, name: str) -> str:
    """Return the value of the field ``name`` of a change as text, with a trigger in words."""
    if name == "trigger" and isinstance(value, Mapping):
        try:
            return trigger_from_json(value).describe()
        except InvalidTriggerError:
            # A damaged row, or a kind that only a newer version knows.
            return " ".join(str(value[key]) for key in ("spec", "timezone") if value.get(key))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
