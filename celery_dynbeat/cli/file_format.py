"""Schedules as a file of YAML or JSON, which ``apply`` reads and ``export`` writes.

Each field of ``create()`` has the same name here. Durations are seconds, instants are ISO 8601 with
an offset. A trigger is its text. A field that has its default is left out.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from celery_dynbeat.api.checks import check_text
from celery_dynbeat.api.field_types import Instant
from celery_dynbeat.api.fields import DEFAULTS, FIELDS
from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.common.errors import DynbeatError, InvalidArgumentError, InvalidTriggerError
from celery_dynbeat.common.text import BYTE_ORDER_MARK, escape, load_json, shorten, suggestion
from celery_dynbeat.triggers import Trigger

FORMAT_VERSION = 1
#: Characters. PyYAML needs seconds for YAML of this length.
MAX_LENGTH = 1_000_000
_TOP_LEVEL = ("version", "owner", "schedules")
_REQUIRED = ("name", "task", "trigger")
_PAUSE = ("enabled", "paused_reason", "paused_until")
#: The keys of a schedule, in the order of a file.
_KEYS = (
    *("owner", "name", "task", "trigger"),
    *(name for name, field in FIELDS.items() if not field.is_required),
    *_PAUSE,
)
_INSTANT = Instant()
#: Fields that are entries of ``options``.
_OPTIONS = frozenset(name for name, field in FIELDS.items() if field.in_options)
_JSON_OBJECT = re.compile(r'\s*\{\s*["}]')
_MERGE, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"
_QUOTE_HINT = "put a value that begins with * or & or @ in quotes, such as '*/5 * * * *'"


class DeclarationError(DynbeatError):
    """A file of schedules is invalid. ``line`` is known if the file cannot be read."""

    def __init__(
        self, message: str, *, file: str, line: int | None = None, field: str | None = None
    ) -> None:
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {message}")
        self.file, self.line, self.field = file, line, field


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule of the file. ``given`` are its fields as they are written."""

    file: str
    owner: str
    name: str
    given: Mapping[str, Any]

    def error(self, message: str, field: str | None) -> DeclarationError:
        """Return the error of one field, or of the whole schedule."""
        message = f"schedule {self.name!r}: {message}"
        return DeclarationError(message, file=self.file, field=field)


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """The schedules of a file. ``owner`` is the owner of the whole file, or None."""

    owner: str | None
    schedules: Sequence[Declaration]

    def owners(self) -> list[str]:
        """Return the owners that the file names, sorted."""
        named = set() if self.owner is None else {self.owner}
        return sorted(named | {each.owner for each in self.schedules})


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with the keys of JSON: texts, each of them once.

    ``--prune`` would delete what an earlier ``schedules`` key declares.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the mapping. Raises ComposerError for another key, and for several merges."""
        mapping = super().compose_mapping_node(anchor)
        seen = set()
        for key, value in mapping.value:
            problem = None
            # Several merges could include the same mappings millions of times.
            if key.tag == _MERGE and not isinstance(value, yaml.MappingNode):
                problem = "<< merges one mapping"
            elif key.tag not in {_MERGE, _TEXT}:
                problem = "each key must be a text; put a number, yes, no, on or off in quotes"
            elif key.value in seen:
                problem = f"the key {shorten(key.value)} occurs twice; give it once"
            if problem is not None:
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return mapping


def read(text: str, *, file: str) -> Any:
    """Return the value of a file. ``file`` is its name for messages. Raises DeclarationError."""
    if len(text) > MAX_LENGTH:
        message = f"longer than {MAX_LENGTH:,} characters; split it by owner or tag"
        raise DeclarationError(message, file=file)
    # The mark that some editors write at the start of a file. It is not a part of JSON.
    text = text.removeprefix(BYTE_ORDER_MARK)
    # YAML reads "\ud83d\ude00" as two lone surrogates.
    is_json = _JSON_OBJECT.match(text) is not None
    try:
        return load_json(text) if is_json else yaml.load(text, _Loader)  # noqa: S506 - a safe one
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}, column {error.colno}"
        raise DeclarationError(message, file=file, line=error.lineno) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it cannot be read"
        context = error.context or ""
        needs_quotes = "alias" in context or "anchor" in context or "cannot start" in problem
        message = f"not valid YAML: {problem}" + (f"; {_QUOTE_HINT}" if needs_quotes else "")
        line = None if mark is None else mark.line + 1
        raise DeclarationError(message, file=file, line=line) from error
    # The constructors of PyYAML raise any of them for a value that has an explicit tag.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200]
        message = f"not valid {'JSON' if is_json else 'YAML'}: {reason}"
        raise DeclarationError(message, file=file) from error


def declared_file(text: str, *, file: str, owner: str | None) -> DeclaredFile:
    """Return the schedules of a file.

    ``owner`` is the only owner that the file may name, or None for any. Raises DeclarationError.
    """
    document = read(text, file=file)
    if not isinstance(document, Mapping):
        raise DeclarationError("the file must be a mapping with the key schedules", file=file)
    _check_keys(file, "", document, _TOP_LEVEL)
    if document.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        message = f"version {shorten(document['version'])} of the format is not known; it is"
        raise DeclarationError(f"{message} {FORMAT_VERSION}", file=file, field="version")
    schedules = document.get("schedules")
    if not isinstance(schedules, list):
        raise DeclarationError("schedules must be a list", file=file, field="schedules")
    # A key without a value is not the application, whose schedules --prune would delete.
    whole = _owner(file, "", document["owner"], owner) if "owner" in document else owner
    found: dict[tuple[str, str], Declaration] = {}
    for index, given in enumerate(schedules):
        each = _declaration(file, index, given, default=whole or "", only=owner)
        if (each.owner, each.name) in found:
            raise each.error("the file has it twice", "name")
        found[each.owner, each.name] = each
    return DeclaredFile(whole, [*found.values()])


def _declaration(
    file: str, index: int, each: object, *, default: str, only: str | None
) -> Declaration:
    if not isinstance(each, Mapping):
        message = f"schedule {index}: {shorten(each)} must be a mapping with name, task, trigger"
        raise DeclarationError(message, file=file)
    name = each.get("name")
    place = f"schedule {index if name is None else shorten(name)}: "
    _check_keys(file, place, each, _KEYS)
    missing = [field for field in _REQUIRED if each.get(field) is None]
    if missing:
        raise DeclarationError(f"{place}it has no {missing[0]}", file=file, field=missing[0])
    if not isinstance(name, str):
        raise DeclarationError(f"{place}name must be a string", file=file, field="name")
    return Declaration(file, _owner(file, place, each.get("owner", default), only), name, each)


def _owner(file: str, place: str, given: object, only: str | None) -> str:
    if not isinstance(given, str):
        message = f"{place}owner = {shorten(given)}: must be a string, such as 'user:42'"
        raise DeclarationError(message, file=file, field="owner")
    if only is not None and given != only:
        rule = f"--owner allows only {only!r}; leave the owner out, or both"
        raise DeclarationError(f"{place}owner = {given!r}: {rule}", file=file, field="owner")
    return given


def _check_keys(file: str, place: str, mapping: Mapping[Any, Any], known: Sequence[str]) -> None:
    for key in mapping:
        if key not in known:
            message = f"{place}there is no such key: {shorten(key)}; {suggestion(key, known)}"
            raise DeclarationError(message, file=file, field=str(key))


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``create()`` for a declared schedule, without its pause.

    A field that is not given has its default. Raises InvalidArgumentError and InvalidTriggerError.
    """
    values = {name: FIELDS[name].from_json(given[name]) for name in FIELDS if name in given}
    return {**DEFAULTS, **values, "trigger": _trigger(given.get("trigger"))}


def pause_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the file gives for the pause.

    Raises InvalidArgumentError.
    """
    pause = {key: given[key] for key in _PAUSE if key in given}
    for field in pause.keys() - {"enabled"}:
        if pause.get("enabled") is not False:
            message = f"{field} = {shorten(given[field])}: needs enabled: false"
            raise InvalidArgumentError(message, field=field)
    if pause.get("paused_reason") is not None:
        check_text("paused_reason", pause["paused_reason"])
    if pause.get("paused_until") is not None:
        until = _INSTANT.from_json("paused_until", pause["paused_until"])
        pause["paused_until"] = _INSTANT.check("paused_until", until)
    return pause


def _trigger(given: object) -> Trigger:
    if isinstance(given, str):
        return Trigger.from_text(given)
    rule = (
        "must be a text, in quotes if YAML reads it as another value, such as '2026-11-21T09:00Z'"
    )
    if isinstance(given, Mapping):
        rule = (
            "must be a text ('0 9 * * mon-fri', 'PT5M', 'CRON_TZ=Asia/Seoul 0 9 * * *'); convert"
            " an object with kind, spec and timezone with str(Trigger.from_json(...))"
        )
    raise InvalidTriggerError(f"trigger = {shorten(given)}: {rule}", field="trigger")


def declared(info: ScheduleInfo, *, with_owner: bool) -> dict[str, Any]:
    """Return the fields of a stored schedule that differ from their defaults, in the order of keys.

    ``arguments`` and ``pause_of`` read them back. The trigger must be readable.
    """
    values: dict[str, Any] = {"name": info.name, "task": info.task}
    if with_owner:
        values["owner"] = info.owner
    values["trigger"] = str(info.given_trigger)
    for name, field in FIELDS.items():
        value = field.to_json(field.value_in(info))
        if name == "options":
            # None means that the value has too many digits or levels for Python.
            value = {key: each for key, each in (value or {}).items() if key not in _OPTIONS}
        if value != field.default and not field.is_required:
            values[name] = value
    if not info.enabled:
        values["enabled"] = False
        if info.paused_reason:
            values["paused_reason"] = info.paused_reason
        if info.paused_until:
            values["paused_until"] = _INSTANT.to_json(info.paused_until)
    return {key: values[key] for key in _KEYS if key in values}


def file_lines(
    schedules: Iterable[ScheduleInfo], *, owner: str | None, as_json: bool, omitted: Counter[str]
) -> Iterator[str]:
    """Yield the parts of the file. ``owner`` is the only owner, or None for several.

    ``omitted`` counts the schedules that are left out, by reason, while the parts are read. A
    finished schedule never fires again, so ``apply`` would refuse it. A damaged trigger cannot be
    written.
    """
    head: dict[str, Any] = {"version": FORMAT_VERSION}
    if owner is not None:
        head["owner"] = owner
    yield f'{json_text(head)[:-1]}, "schedules": [' if as_json else yaml_text(head)
    is_empty = True
    for info in schedules:
        if reason := _reason_to_leave_out(info):
            omitted[reason] += 1
            continue
        schedule = declared(info, with_owner=owner is None)
        if as_json:
            yield ("\n  " if is_empty else ",\n  ") + json_text(schedule)
        else:
            yield ("schedules:\n" if is_empty else "") + yaml_text([schedule])
        is_empty = False
    if as_json:
        yield "\n]}\n"
    elif is_empty:
        yield "schedules: []\n"


def _reason_to_leave_out(info: ScheduleInfo) -> str | None:
    if info.managed_by:
        return "follow an entry of beat_schedule"
    if info.trigger is None:
        return "have a damaged trigger"
    if None in (info.args, info.kwargs, info.options):
        return "have arguments with too many digits or levels"
    return "are finished" if info.finished_at is not None else None


def yaml_text(value: object) -> str:
    """Return a value of JSON as YAML that ``read`` reads back.

    It has escapes if a terminal must not show it as it is.
    """
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    if _is_safe(text.replace("\n", "")):
        return text
    return str(yaml.safe_dump(value, sort_keys=False, width=100))


def json_text(value: object) -> str:
    """Return a value as JSON, with escapes if a terminal must not show it as it is."""
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_safe(text) else json.dumps(value)


def _is_safe(characters: Iterable[str]) -> bool:
    return all(escape(character) == character for character in characters)
