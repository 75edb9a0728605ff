"""The fields of a schedule. Each is one row of FIELDS, from which the surfaces derive.

The API checks, compares and audits the columns of FIELDS. ``dynbeat add``, ``update``, ``show``,
``apply`` and ``export``, the form and the pages of Flower, and the docs show them. A new field also
has a column in ``db.models``, and a line in the types ``Fields`` and ``ScheduleInfo``.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal
from zoneinfo import ZoneInfo

from celery_dynbeat.api import options
from celery_dynbeat.api.field_types import (
    Choice,
    Duration,
    FieldType,
    Instant,
    Integer,
    Json,
    Name,
    RetryPolicy,
    Tags,
    Task,
    Text,
    Url,
    Window,
)
from celery_dynbeat.common.settings import CATCH_UPS, ON_LOST, OVERLAPS, Settings


@dataclass(frozen=True)
class Field:
    """A field of a schedule.

    - ``label`` is its name in a form, and ``help`` is a sentence.
    - ``default`` is the value of a schedule that does not set the field. A field whose default is
      None accepts None, and a policy then follows the setting of the same name, if there is one.
      ``unset`` says what None means without a setting.
    - ``group`` is the part of a page that has the field.
    - With ``moves_fire_time``, a new value plans the next fire time again. With ``moves_offset``,
      it sets the offset of the next run.
    - With ``in_options``, the field is an entry of the column ``options``.
    """

    name: str
    type: FieldType
    label: str
    help: str
    group: Literal["call", "about", "limit", "policy", "report"] = "policy"
    default: Any = None
    unset: str = "none"
    is_required: bool = False
    in_options: bool = False
    in_form: bool = True
    moves_fire_time: bool = False
    moves_offset: bool = False

    @property
    def is_optional_column(self) -> bool:
        """Whether the field is a column that a new schedule need not set."""
        return not (self.is_required or self.in_options)

    @property
    def setting(self) -> str | None:
        """The setting that applies to a schedule without a value, or None."""
        return f"dynbeat_{self.name}" if self.name in Settings.__dataclass_fields__ else None

    def check(self, given: Any) -> Any:
        """Return the stored form of a given value. Raises InvalidScheduleError."""
        if given is None and self.default is None and not self.is_required:
            return None
        if self.in_options:
            options.check_one(self.name, given)
            return given
        return self.type.check(self.name, given)

    def value_in(self, info: Any) -> Any:
        """Return the value of a ScheduleInfo."""
        if not self.in_options:
            return getattr(info, self.name)
        # Manual SQL can write any JSON.
        return info.options.get(self.name) if isinstance(info.options, Mapping) else None

    def parse(self, text: str) -> Any:
        """Return the given form of a text; the default for an empty text. Raises ValueError."""
        return self.type.parse(text) if text.strip() or self.is_required else copy(self.default)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return the text of a value, which ``parse`` reads back."""
        is_default = value is None and self.default is None
        return "" if is_default else self.type.format(value, zone)

    def from_json(self, value: Any) -> Any:
        """Return the given form of the JSON in a file. Raises InvalidScheduleError."""
        return None if value is None else self.type.from_json(self.name, value)

    def to_json(self, value: Any) -> Any:
        """Return the JSON of a value for a file."""
        return None if value is None else self.type.to_json(value)

    @property
    def option(self) -> str:
        """The option of the command line."""
        return "--tag" if isinstance(self.type, Tags) else f"--{self.name.replace('_', '-')}"

    def unset_text(self, settings: Settings) -> str:
        """Return what applies to a schedule without a value."""
        value = getattr(settings, self.name, None)
        return self.type.format(value, ZoneInfo("UTC")) if value else self.unset


#: By name, in the order in which the surfaces show them.
FIELDS: Mapping[str, Field] = {
    field.name: field
    for field in (
        Field("task", Task(), "Task", "The name of the task.", group="call", is_required=True),
        Field(
            "args",
            Json(list),
            "Arguments",
            "Positional arguments of the task.",
            group="call",
            default=[],
        ),
        Field(
            "kwargs",
            Json(dict),
            "Keyword arguments",
            "Keyword arguments of the task.",
            group="call",
            default={},
        ),
        Field(
            "queue", Name(), "Queue", "The queue of the messages.", group="call", in_options=True
        ),
        Field(
            "priority",
            Integer(0, options.MAX_PRIORITY),
            "Priority",
            "The priority of the messages.",
            group="call",
            in_options=True,
        ),
        Field(
            "options",
            Json(dict),
            "Options",
            "Other options of apply_async.",
            group="call",
            default={},
            in_form=False,
        ),
        Field(
            "start_at",
            Instant(),
            "Start at",
            "The time before which the schedule does not fire.",
            group="limit",
            moves_fire_time=True,
            # An interval counts from start_at.
            moves_offset=True,
        ),
        Field(
            "end_at",
            Instant(),
            "End at",
            "The time after which the schedule does not fire.",
            group="limit",
            moves_fire_time=True,
        ),
        Field(
            "max_runs",
            Integer(1),
            "Max runs",
            "The number of runs after which the schedule is finished.",
            group="limit",
            moves_fire_time=True,
        ),
        Field("catch_up", Choice(CATCH_UPS), "Catch up", "Which missed fire times to send."),
        Field(
            "catch_up_window",
            Duration(1, "a shorter window skips runs that are on time"),
            "Catch-up window",
            "The age above which missed fire times are not sent.",
            unset="no limit",
        ),
        Field(
            "overlap", Choice(OVERLAPS), "Overlap", "What to do if the previous run is unfinished."
        ),
        Field(
            "max_run_time",
            Duration(),
            "Max run time",
            "The time after which a running run no longer counts as an overlap.",
        ),
        Field(
            "window",
            Window(),
            "Window",
            "The span after a fire time in which the schedule has its offset, such as 10m, or"
            " 50% (of the interval).",
            moves_offset=True,
        ),
        Field(
            "expires_after",
            Duration(),
            "Expires after",
            "The time after which a run that has not started expires.",
            unset="never",
        ),
        Field(
            "finish_within",
            Duration(),
            "Finish within",
            "The time from the fire time after which an unfinished run is an alert.",
            unset="no limit",
        ),
        Field("on_lost", Choice(ON_LOST), "On lost", "What to do if the worker of a run dies."),
        Field(
            "pause_after_failures",
            Integer(),
            "Pause after failures",
            "Pause the schedule after this many failed runs in a row. 0 means never.",
            unset="never",
        ),
        Field(
            "retry",
            RetryPolicy(),
            "Retry",
            "How to retry a failed run, such as 3 or 'max_retries=3, backoff=5m, factor=2'. 0 means"
            " never.",
            unset="never",
        ),
        Field(
            "description",
            Text(),
            "Description",
            "A description for people.",
            group="about",
            default="",
        ),
        Field(
            "tags",
            Tags(),
            "Tags",
            "A tag by which lists and commands filter.",
            group="about",
            default=[],
        ),
        Field(
            "ping_url",
            Url(),
            "Ping URL",
            "The URL to which workers report each run.",
            group="report",
            in_form=False,
        ),
    )
}
#: The values of a schedule that sets only what is required.
DEFAULTS = {name: field.default for name, field in FIELDS.items() if field.is_optional_column}
#: The columns that are sent in the message. dynbeat_max_payload_bytes limits their size.
PAYLOAD = tuple(name for name, field in FIELDS.items() if isinstance(field.type, Json))
