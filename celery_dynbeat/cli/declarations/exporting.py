"""Write stored schedules as a file that ``apply`` reads."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.cli.declarations.document import FORMAT_VERSION
from celery_dynbeat.cli.declarations.fields import declared
from celery_dynbeat.common.text import escape


@dataclass
class Exported:
    """The number of schedules in the file, and those that it leaves out, by reason."""

    written: int = 0
    omitted: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str) -> None:
        """Count a schedule that is not written."""
        self.omitted[reason] = self.omitted.get(reason, 0) + 1


def file_lines(
    schedules: Iterable[ScheduleInfo], *, owner: str | None, as_json: bool, result: Exported
) -> Iterator[str]:
    """Yield the parts of the file. ``owner`` is the only owner, or None for several.

    ``result`` counts while the parts are read. A finished schedule never fires again, so ``apply``
    would refuse it. A damaged trigger cannot be written.
    """
    head: dict[str, Any] = {"version": FORMAT_VERSION}
    if owner is not None:
        head["owner"] = owner
    write = _json_lines if as_json else _yaml_lines
    yield from write(head, _declared(schedules, owner=owner, result=result))


def _declared(
    schedules: Iterable[ScheduleInfo], *, owner: str | None, result: Exported
) -> Iterator[Mapping[str, Any]]:
    for info in schedules:
        if reason := _reason_to_leave_out(info):
            result.leave_out(reason)
            continue
        result.written += 1
        yield declared(info, with_owner=owner is None)


def _reason_to_leave_out(info: ScheduleInfo) -> str | None:
    if info.managed_by:
        return "follow an entry of beat_schedule"
    if info.trigger is None:
        return "have a damaged trigger"
    if None in (info.args, info.kwargs, info.options):
        return "have arguments with too many digits or levels"
    return "are finished" if info.finished_at is not None else None


def _yaml_lines(head: Mapping[str, Any], each: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield yaml_text(head)
    is_empty = True
    for schedule in each:
        if is_empty:
            yield "schedules:\n"
        is_empty = False
        yield yaml_text([schedule])
    if is_empty:
        yield "schedules: []\n"


def yaml_text(value: object) -> str:
    """Return a value of JSON as YAML that ``read`` reads back.

    It has escapes if a terminal must not show it as it is.
    """
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    if _is_safe(text.replace("\n", "")):
        return text
    return str(yaml.safe_dump(value, sort_keys=False, width=100))


def _is_safe(characters: Iterable[str]) -> bool:
    return all(escape(character) == character for character in characters)


def json_text(value: object) -> str:
    """Return a value as JSON, with escapes if a terminal must not show it as it is."""
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_safe(text) else json.dumps(value)


def _json_lines(head: Mapping[str, Any], each: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    opening = json_text(head)[:-1]
    yield f'{opening}, "schedules": ['
    separator = "\n  "
    for schedule in each:
        yield separator + json_text(schedule)
        separator = ",\n  "
    yield "\n]}\n"
