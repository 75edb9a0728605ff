r"""Read YAML or JSON with the line of each value.

YAML follows the core schema of YAML 1.2 (section 10.3.2), without ``0o17``, ``0x1f``, ``.inf`` and
``.nan``: they are texts. PyYAML implements YAML 1.1, where ``on`` is a boolean and ``12:30`` is the
number 750. JSON is read by the standard library: YAML 1.1 reads ``\ud83d\ude00`` as two lone
surrogates.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.common.text import BYTE_ORDER_MARK, RepeatedKeyError, load_json, shorten

#: The keys and the indexes that lead to a value.
Path = tuple[str | int, ...]

_JSON_OBJECT = re.compile(r'\s*\{\s*["}]')
#: Characters. YAML of this length takes about 5 seconds and 200 MB on the test machine.
MAX_LENGTH = 1_000_000
#: Values of a file in which each alias counts as what it repeats.
MAX_VALUES = 200_000
_QUOTE_HINT = "put a value that begins with * or & or @ in quotes, such as '*/5 * * * *'"


class DeclarationError(DynbeatError):
    """A file of schedules is invalid. The message names the file, the line and the field."""

    def __init__(self, message: str, *, file: str, line: int | None, field: str | None) -> None:
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {message}")
        self.file, self.line, self.field = file, line, field


@dataclass(frozen=True, slots=True)
class Source:
    """The content of a file, and the line of each value in it, counted from 1."""

    file: str
    value: Any
    lines: Mapping[Path, int]

    def line_of(self, path: Path) -> int | None:
        """Return the line of the value at ``path``, or of the nearest value that contains it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def error(self, message: str, *path: str | int) -> DeclarationError:
        """Return the error of the value at ``path``."""
        field = next((key for key in reversed(path) if isinstance(key, str)), None)
        return DeclarationError(message, file=self.file, line=self.line_of(path), field=field)


def read(text: str, *, file: str) -> Source:
    """Return the content of a file. ``file`` is its name for messages.

    Raises DeclarationError.
    """
    if len(text) > MAX_LENGTH:
        message = f"longer than {MAX_LENGTH:,} characters; split it by owner or tag"
        raise DeclarationError(message, file=file, line=None, field=None)
    # The mark that some editors write at the start of a file. It is not a part of JSON.
    text = text.removeprefix(BYTE_ORDER_MARK)
    if _JSON_OBJECT.match(text):
        return Source(file, _read_json(text, file), _json_lines(text))
    lines = _Lines(file)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return Source(file, None, {})
            lines.add(node)
            return Source(file, loader.construct_document(node), lines.found)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, file) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise DeclarationError(reason, file=file, line=None, field=None) from error


def _read_json(text: str, file: str) -> Any:
    try:
        return load_json(text)
    except RepeatedKeyError as error:
        raise DeclarationError(str(error), file=file, line=None, field=error.key) from error
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}, column {error.colno}"
        raise DeclarationError(message, file=file, line=error.lineno, field=None) from error
    except (ValueError, RecursionError) as error:
        message = f"not valid JSON: {str(error)[:200]}"
        raise DeclarationError(message, file=file, line=None, field=None) from error


def _json_lines(text: str) -> Mapping[Path, int]:
    """Return the lines of valid JSON.

    YAML can read nearly all JSON. For the rest, no line is known.
    """
    lines = _Lines("")
    try:
        node = yaml.compose(text, _Loader)
        if node is not None:
            lines.add(node)
    except (yaml.YAMLError, ValueError, RecursionError, DeclarationError):
        return {}
    return lines.found


def _syntax_error(error: yaml.MarkedYAMLError, file: str) -> DeclarationError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it cannot be read"
    context = error.context or ""
    needs_quotes = "alias" in context or "anchor" in context or "cannot start" in problem
    message = f"not valid YAML: {problem}" + (f"; {_QUOTE_HINT}" if needs_quotes else "")
    line = None if mark is None else mark.line + 1
    return DeclarationError(message, file=file, line=line, field=None)


class _Lines:
    """Collects the line of each node, and rejects a key that occurs twice in one mapping.

    Aliases can repeat aliases. A small file can then have more values than the memory. A file with
    too many values is therefore rejected before the values are created.
    """

    def __init__(self, file: str) -> None:
        self.found: dict[Path, int] = {}
        self._file = file
        #: Number of values in each node; None while it is counted.
        self._sizes: dict[int, int | None] = {}

    def add(self, node: yaml.Node, path: Path = (), line: int | None = None) -> int:
        """Return the number of values in ``node``."""
        self.found[path] = line = line or node.start_mark.line + 1
        # An alias repeats a node.
        if id(node) not in self._sizes:
            self._sizes[id(node)] = None
            children = self._children(node)
            self._sizes[id(node)] = 1 + sum(
                self.add(child, (*path, key), child_line) for key, child, child_line in children
            )
        size = self._sizes[id(node)]
        if size is None:
            raise self._error("an alias repeats the value that contains it", line, path)
        if size > MAX_VALUES:
            raise self._error(f"more than {MAX_VALUES:,} values, as aliases count", line, path)
        return size

    def _error(self, message: str, line: int, path: Path) -> DeclarationError:
        field = next((key for key in reversed(path) if isinstance(key, str)), None)
        return DeclarationError(message, file=self._file, line=line, field=field)

    def _children(self, node: yaml.Node) -> Iterator[tuple[str | int, yaml.Node, int]]:
        if isinstance(node, yaml.SequenceNode):
            for index, child in enumerate(node.value):
                yield index, child, child.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, child in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    message = "the key of a mapping must be a text, not a list or a mapping"
                    raise DeclarationError(message, file=self._file, line=line, field=None)
                if key.value in seen:
                    message = f"the key {shorten(key.value)} occurs twice in one mapping"
                    raise DeclarationError(
                        f"{message}; give it once", file=self._file, line=line, field=key.value
                    )
                seen.add(key.value)
                yield key.value, child, line


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2: no dates, no sexagesimal numbers."""

    # PyYAML adds the resolvers of a class to its own copy of this mapping.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the type of PyYAML's attribute


#: Name, pattern and first characters of the scalars that are not strings.
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    # A mapping can include another mapping.
    ("merge", r"<<", "<"),
)


def resolve_as_yaml_1_2(kind: type[_Loader] | type[yaml.SafeDumper]) -> None:
    """Make a loader or a dumper recognise these scalars."""
    for name, pattern, first in _SCALARS:
        kind.add_implicit_resolver(
            f"tag:yaml.org,2002:{name}",
            re.compile(f"^(?:{pattern})$"),
            ["" if each == "\0" else each for each in first],
        )


resolve_as_yaml_1_2(_Loader)


def _boolean(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool:
    text = str(loader.construct_scalar(node))
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"{shorten(text)} is not a boolean: write true or false")
    return text.lower() == "true"


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)))


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)))


# JSON has none of the other types of YAML, such as dates and sets.
_KEPT = (*(f"tag:yaml.org,2002:{name}" for name in ("str", "null", "seq", "map")), None)
_Loader.yaml_constructors = {tag: _Loader.yaml_constructors[tag] for tag in _KEPT}
_Loader.add_constructor("tag:yaml.org,2002:bool", _boolean)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
