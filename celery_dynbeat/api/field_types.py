"""The types of the fields of a schedule.

Each converts a value between these forms:

given    what create() accepts, such as a timedelta, or a number of seconds
stored   the value of the column: 60.0
value    the attribute of ScheduleInfo: timedelta(minutes=1)
text     what a person types in a shell or in a form: 1m
JSON     what a file of ``dynbeat apply`` contains: 60.0
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api import typed_text
from celery_dynbeat.api.checks import (
    MAX_SECONDS,
    check_instant,
    check_integer,
    check_name,
    check_text,
    copy_as,
    invalid,
)
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.ping_urls import masked
from celery_dynbeat.common.retry import Retry, stored_retry
from celery_dynbeat.common.text import as_text, escape, load_json, shorten
from celery_dynbeat.common.window import as_share

TAG_LENGTH = 64
MAX_TAGS = 32
_WHOLE_NUMBER = re.compile(r"\d{1,100}", re.ASCII)
#: JSON up to this length is written on one line. So is longer JSON than _PAGE: indentation could
#: multiply its length, and with it the size of the form.
_LINE, _PAGE = 72, 8_000


class FieldType:
    """The type of a field. ``metavar`` is its name in the help of commands."""

    metavar = "TEXT"
    _values = "a string"

    @property
    def values(self) -> str:
        """The given values, as the docs name them."""
        return self._values

    def check(self, field: str, given: Any) -> Any:
        """Return the stored form of a given value. Raises InvalidScheduleError."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """Return the given form of a text. Raises ValueError."""
        return text.strip()

    def value_of(self, stored: Any) -> Any:
        """Return the value of a stored one, which SQL may have written."""
        return stored

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return a text that ``parse`` reads back; instants are on the clock of ``zone``."""
        del zone
        return str(value)

    def from_json(self, field: str, value: Any) -> Any:
        """Return the given form of the JSON in a file. Raises InvalidScheduleError."""
        del field
        return value

    def to_json(self, value: Any) -> Any:
        """Return the JSON of a value for a file."""
        return value

    def masked(self, value: Any) -> Any:
        """Return a value, or its JSON, without its secrets."""
        return value

    def shown(self, value: Any) -> Any:
        """Return what pages and commands show for a value."""
        return self.masked(value)


class Text(FieldType):
    """A text of at most 1,024 characters."""

    def check(self, field: str, given: Any) -> str:
        """Return the text."""
        return check_text(field, given)

    def parse(self, text: str) -> str:
        """Return the text as it is."""
        return text


class Name(FieldType):
    """A name without white space at its ends."""

    def check(self, field: str, given: Any) -> str:
        """Return the name."""
        return check_name(field, given)


class Task(FieldType):
    """The name of a task, or a Celery task."""

    metavar = "TASK"
    _values = "a name, or a Celery task"

    def check(self, field: str, given: Any) -> str:
        """Return the name of a task that is given as its name or as a Celery task."""
        return task_name(field, given)


class Url(FieldType):
    """A URL that can contain a token. ``check_ping_url`` checks it against the settings."""

    metavar = "URL"
    _values = "a URL"

    def check(self, field: str, given: Any) -> str:
        """Return the URL. No error shows it."""
        if isinstance(given, str):
            return given
        msg = f"{field} is of type {type(given).__name__}: must be a URL, or None"
        raise InvalidScheduleError(msg, field=field)

    def masked(self, value: Any) -> Any:
        """Return the host."""
        return None if value is None else masked(value)


@dataclass(frozen=True)
class Integer(FieldType):
    """A whole number within bounds."""

    metavar = "NUMBER"
    _values = "a number"
    minimum: int = 0
    maximum: int = 2**31 - 1

    def check(self, field: str, given: Any) -> int:
        """Return the number."""
        return check_integer(field, given, minimum=self.minimum, maximum=self.maximum)

    def parse(self, text: str) -> int:
        """Return the number."""
        if not _WHOLE_NUMBER.fullmatch(text.strip()):
            raise ValueError(f"{shorten(text)} is not a whole number")
        return int(text)


@dataclass(frozen=True)
class Duration(FieldType):
    """A duration above zero. ``least`` is the smallest one in seconds, and ``why`` its reason."""

    metavar = "DURATION"
    _values = "a duration"
    allow_zero = False
    least: int = 0
    why: str = ""

    def check(self, field: str, given: Any) -> Any:
        """Return the seconds."""
        seconds = given.total_seconds() if isinstance(given, timedelta) else given
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        # Rounded to microseconds, so that a caller reads exactly the stored duration.
        is_in_range = is_number and 0 <= seconds < MAX_SECONDS
        duration = timedelta(seconds=seconds) if is_in_range else None
        if duration is None or not (duration or self.allow_zero):
            least = "0 or more" if self.allow_zero else "more than 0"
            rule = f"must be a timedelta or a number of seconds, {least} and below"
            raise invalid(field, given, f"{rule} {MAX_SECONDS:,.0f}")
        if duration.total_seconds() < self.least:
            raise invalid(field, given, f"must be at least {self.least} second: {self.why}")
        return duration.total_seconds()

    def value_of(self, stored: Any) -> Any:
        """Return the duration."""
        return None if stored is None else timedelta(seconds=stored)

    def parse(self, text: str) -> Any:
        """Return the duration."""
        return typed_text.parse_duration(text)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return ``1d``, ``5m`` or ``1.5s``."""
        del zone
        return typed_text.format_duration(value)

    def to_json(self, value: Any) -> Any:
        """Return the seconds."""
        return value.total_seconds()


class Window(Duration):
    """A duration, which can be zero, or a share of the interval such as ``"50%"``."""

    metavar = "WINDOW"
    _values = 'a duration, a share such as `"50%"`, or 0'
    allow_zero = True

    def check(self, field: str, given: Any) -> Any:
        """Return the seconds, or the share."""
        if not isinstance(given, str):
            return super().check(field, given)
        try:
            return as_share(given)
        except ValueError as error:
            raise invalid(field, given, str(error)) from None

    def value_of(self, stored: Any) -> Any:
        """Return the duration, or the share."""
        return stored if isinstance(stored, str) else super().value_of(stored)

    def parse(self, text: str) -> timedelta | str:
        """Return the duration, or the share."""
        return typed_text.parse_window(text)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return ``5m`` or ``50%``."""
        return value if isinstance(value, str) else super().format(value, zone)

    def to_json(self, value: Any) -> Any:
        """Return the seconds, or the share."""
        return value if isinstance(value, str) else super().to_json(value)


class Instant(FieldType):
    """An instant. ``parse`` returns a TypedInstant, which a zone and a clock resolve."""

    metavar = "TIME"
    _values = "an aware datetime"

    def check(self, field: str, given: Any) -> datetime | None:
        """Return the instant in UTC."""
        return check_instant(field, given)

    def parse(self, text: str) -> typed_text.TypedInstant:
        """Return the instant as it was typed."""
        return typed_text.parse_instant(text)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return the time with its offset."""
        return str(value.astimezone(zone).isoformat())

    def from_json(self, field: str, value: Any) -> datetime:
        """Return the instant of ISO 8601 with an offset, which YAML may have read already."""
        rule = "must be an instant with its offset, such as '2026-11-21T09:00:00Z'"
        try:
            instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            instant = None
        if not isinstance(instant, datetime) or instant.tzinfo is None:
            raise InvalidScheduleError(f"{field} = {shorten(value)}: {rule}", field=field)
        return instant

    def to_json(self, value: Any) -> Any:
        """Return ISO 8601 with an offset."""
        return value.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class Choice(FieldType):
    """One of several words."""

    choices: Sequence[str] = ()

    @property
    def values(self) -> str:
        """The words."""
        return ", ".join(f'`"{choice}"`' for choice in self.choices)

    def check(self, field: str, given: Any) -> Any:
        """Return the word."""
        if given not in self.choices:
            raise invalid(field, given, f"must be one of {', '.join(self.choices)}")
        return given


class RetryPolicy(FieldType):
    """A retry policy, or a dict of the arguments of Retry."""

    metavar = "RETRY"
    _values = "`Retry(...)`, or a dict of its arguments"

    def check(self, field: str, given: Any) -> Any:
        """Return the dict of the policy."""
        if isinstance(given, Retry):
            return given.to_json()
        if not isinstance(given, Mapping):
            raise invalid(
                field, given, "must be Retry(max_retries=...), or a dict of its arguments"
            )
        return Retry.from_json(copy_as(dict, field, given)).to_json()

    def value_of(self, stored: Any) -> Retry | None:
        """Return the policy; None if it cannot be read."""
        return stored_retry(stored)

    def parse(self, text: str) -> Retry:
        """Return the policy."""
        return typed_text.parse_retry(text)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return ``max_retries=3, backoff=5m, factor=2``."""
        del zone
        return typed_text.format_retry(value)

    def to_json(self, value: Any) -> Any:
        """Return the dict of the policy."""
        return value.to_json()

    def shown(self, value: Any) -> Any:
        """Return the text of the policy."""
        return None if value is None else typed_text.format_retry(value)


class Tags(FieldType):
    """Short texts, one on each line of a form."""

    metavar = "TAG"
    _values = f"a list of at most {MAX_TAGS} strings"

    def check(self, field: str, given: Any) -> list[str]:
        """Return the tags in order, each once."""
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) > MAX_TAGS:
            raise invalid(field, given, f"must be a list of at most {MAX_TAGS} strings")
        tags = [check_name(field, as_text(tag)) for tag in copy_as(list, field, given)]
        for tag in tags:
            if len(tag) > TAG_LENGTH:
                raise invalid(field, tag, f"a tag must have at most {TAG_LENGTH} characters")
        return sorted(set(tags))

    def value_of(self, stored: Any) -> Sequence[str]:
        """Return the tags as texts that can be encoded. Manual SQL can write any JSON."""
        tags = stored if isinstance(stored, list) else []
        return [str(tag).encode(errors="replace").decode() for tag in tags]

    def parse(self, text: str) -> list[str]:
        """Return the tags."""
        return [tag for line in text.split("\n") if (tag := line.strip())]

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return one tag on each line. A tag contains no line break."""
        del zone
        return "\n".join(map(str, value))


@dataclass(frozen=True)
class Json(FieldType):
    """A list or a mapping of JSON. ``check`` does not look inside; ``to_columns`` does."""

    metavar = "JSON"
    kind: type = dict

    @property
    def values(self) -> str:
        """The kind of the value."""
        return "a list or tuple" if self.kind is list else "a mapping"

    def check(self, field: str, given: Any) -> Any:
        """Return a copy of the list or the mapping."""
        if self.kind is list:
            if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
                raise invalid(field, given, "must be a list or tuple")
            return copy_as(list, field, given)
        copy = copy_as(dict, field, given) if isinstance(given, Mapping) else None
        if copy is None or not all(isinstance(key, str) for key in copy):
            raise invalid(field, given, "must be a mapping whose keys are strings")
        return copy

    def parse(self, text: str) -> Any:
        """Return the list or the mapping."""
        wanted, example = ("array", '[1, "a"]') if self.kind is list else ("object", '{"key": 1}')
        try:
            value = load_json(text)
        except json.JSONDecodeError as error:
            place = f"{error.msg}, line {error.lineno}, column {error.colno}"
            raise ValueError(
                f"{shorten(text)} is not JSON ({place}); an {wanted} looks like {example}"
            ) from None
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None
        if not isinstance(value, self.kind):
            raise ValueError(f"{shorten(text)} is not a JSON {wanted}, such as {example}")  # noqa: TRY004
        return value

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return the JSON, or "" if it is empty."""
        del zone
        if value in ([], {}):
            return ""
        text = json.dumps(value, ensure_ascii=False)
        # A browser shows some characters as nothing, or reverses the text after them.
        is_printable = escape(text) == text
        indent = 2 if _LINE < len(text) <= _PAGE else None
        return json.dumps(value, ensure_ascii=not is_printable, indent=indent)


def task_name(field: str, given: object) -> str:
    """Return the name of a task that is given as its name or as a Celery task.

    Raises InvalidScheduleError.
    """
    if isinstance(given, str):
        return check_name(field, given)
    from celery.app.task import Task as CeleryTask  # noqa: PLC0415 - most callers pass a name
    from celery.canvas import Signature  # noqa: PLC0415

    # A PromiseProxy of a task passes, because its __class__ is the class of the task.
    if isinstance(given, CeleryTask):
        return check_name(field, given.name)
    if isinstance(given, Signature):
        raise _signature_error(field, given)
    raise invalid(field, given, "must be the name of a task, or a Celery task (app.task)")


def _signature_error(field: str, given: Any) -> InvalidScheduleError:
    # The message names only the type: a signature contains the arguments of tasks.
    kind = type(given).__name__.lstrip("_").lower()
    if kind == "signature":
        hint = "pass the task itself, and its arguments as args= and kwargs="
    else:
        hint = f"write a task that starts the {kind} with apply_async(), and pass that task"
    msg = f"{field} is a {kind}: a schedule calls one task, by its name; {hint}"
    return InvalidScheduleError(msg, field=field)
