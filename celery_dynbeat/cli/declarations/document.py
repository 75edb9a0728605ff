"""The schedules that a file of YAML or JSON declares."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from celery_dynbeat.cli.declarations.fields import ORDER, REQUIRED
from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.common.text import BYTE_ORDER_MARK, load_json, shorten, suggestion

FORMAT_VERSION = 1
#: Characters. PyYAML needs seconds for YAML of this length.
MAX_LENGTH = 1_000_000
_TOP_LEVEL = ("version", "owner", "schedules")
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
        raise _syntax_error(error, file) from error
    # The constructors of PyYAML raise any of them for a value that has an explicit tag.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200]
        message = f"not valid {'JSON' if is_json else 'YAML'}: {reason}"
        raise DeclarationError(message, file=file) from error


def _syntax_error(error: yaml.MarkedYAMLError, file: str) -> DeclarationError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it cannot be read"
    context = error.context or ""
    needs_quotes = "alias" in context or "anchor" in context or "cannot start" in problem
    message = f"not valid YAML: {problem}" + (f"; {_QUOTE_HINT}" if needs_quotes else "")
    return DeclarationError(message, file=file, line=None if mark is None else mark.line + 1)


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
    default = whole or ""
    found = [
        _declaration(file, index, each, default=default, only=owner)
        for index, each in enumerate(schedules)
    ]
    _check_distinct(found)
    return DeclaredFile(whole, found)


def _declaration(
    file: str, index: int, each: object, *, default: str, only: str | None
) -> Declaration:
    if not isinstance(each, Mapping):
        message = f"schedule {index}: {shorten(each)} must be a mapping with name, task, trigger"
        raise DeclarationError(message, file=file)
    name = each.get("name")
    place = f"schedule {index if name is None else shorten(name)}: "
    _check_keys(file, place, each, ORDER)
    missing = [field for field in ("name", *REQUIRED) if each.get(field) is None]
    if missing:
        raise DeclarationError(f"{place}it has no {missing[0]}", file=file, field=missing[0])
    if not isinstance(name, str):
        raise DeclarationError(f"{place}name must be a string", file=file, field="name")
    owner = _owner(file, place, each.get("owner", default), only)
    return Declaration(file, owner, name, each)


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


def _check_distinct(found: Sequence[Declaration]) -> None:
    known: set[tuple[str, str]] = set()
    for each in found:
        if (each.owner, each.name) in known:
            raise each.error("the file has it twice", "name")
        known.add((each.owner, each.name))
