"""The schedules that a file declares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_dynbeat.cli.declarations.fields import ORDER, REQUIRED
from celery_dynbeat.cli.declarations.source import DeclarationError, Source
from celery_dynbeat.common.text import shorten, suggestion

FORMAT_VERSION = 1
_TOP_LEVEL = ("version", "owner", "schedules")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule of the file. ``given`` are its fields as they are written."""

    source: Source
    index: int
    owner: str
    name: str
    given: Mapping[str, Any]

    def error(self, message: str, field: str | None) -> DeclarationError:
        """Return the error of one field, or of the whole schedule."""
        path = ("schedules", self.index) if field is None else ("schedules", self.index, field)
        return self.source.error(f"schedule {self.name!r}: {message}", *path)


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """The schedules of a file. ``owner`` is the owner of the whole file, or None."""

    owner: str | None
    schedules: Sequence[Declaration]

    def owners(self) -> list[str]:
        """Return the owners that the file names, sorted."""
        named = set() if self.owner is None else {self.owner}
        return sorted(named | {each.owner for each in self.schedules})


def declared_file(source: Source, *, owner: str | None) -> DeclaredFile:
    """Return the schedules of a file.

    ``owner`` is the only owner that the file may name, or None for any. Raises DeclarationError.
    """
    document = source.value
    if not isinstance(document, Mapping):
        raise source.error("the file must be a mapping with the key schedules")
    _check_keys(source, document, _TOP_LEVEL, ())
    if document.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        message = f"version {shorten(document['version'])} of the format is not known; it is"
        raise source.error(f"{message} {FORMAT_VERSION}", "version")
    schedules = document.get("schedules")
    if not isinstance(schedules, list):
        raise source.error("schedules must be a list", "schedules")
    whole = document.get("owner", owner)
    default = "" if whole is None else _owner(source, whole, owner, "owner")
    found = [
        _declaration(source, index, each, default=default, only=owner)
        for index, each in enumerate(schedules)
    ]
    _check_distinct(found)
    return DeclaredFile(None if whole is None else default, found)


def _declaration(
    source: Source, index: int, each: object, *, default: str, only: str | None
) -> Declaration:
    path = ("schedules", index)
    if not isinstance(each, Mapping):
        raise source.error(f"{shorten(each)} must be a mapping with name, task, trigger", *path)
    _check_keys(source, each, ORDER, path)
    missing = [field for field in ("name", *REQUIRED) if each.get(field) is None]
    if missing:
        raise source.error(f"schedule {each.get('name', index)!r} has no {missing[0]}", *path)
    if not isinstance(each["name"], str):
        raise source.error(f"name = {shorten(each['name'])}: must be a string", *path, "name")
    owner = _owner(source, each.get("owner", default), only, *path, "owner")
    return Declaration(source, index, owner, each["name"], each)


def _owner(source: Source, given: object, only: str | None, *path: str | int) -> str:
    if not isinstance(given, str):
        raise source.error(f"owner = {shorten(given)}: must be a string, such as 'user:42'", *path)
    if only is not None and given != only:
        message = f"owner = {given!r}: --owner allows only {only!r}; leave the owner out, or both"
        raise source.error(message, *path)
    return given


def _check_keys(
    source: Source, mapping: Mapping[Any, Any], known: tuple[str, ...], path: tuple[str | int, ...]
) -> None:
    for key in mapping:
        if key in known:
            continue
        message = f"there is no such key: {shorten(key)}; {suggestion(key, known)}"
        raise source.error(message, *path, str(key))


def _check_distinct(found: list[Declaration]) -> None:
    first: dict[tuple[str, str], Declaration] = {}
    for each in found:
        earlier = first.setdefault((each.owner, each.name), each)
        if earlier is not each:
            line = earlier.source.line_of(("schedules", earlier.index))
            raise each.error(f"the file has it twice, first in line {line}", "name")
