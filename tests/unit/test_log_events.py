"""The log calls of the package agree with docs/reference/logging.md."""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import celery_dynbeat
from celery_dynbeat.common.events import Event
from celery_dynbeat.telemetry import logs
from celery_dynbeat.telemetry.logs import LOGGED

PACKAGE = Path(celery_dynbeat.__file__).parent
REFERENCE = PACKAGE.parent / "docs/reference/logging.md"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
RUN_FIELDS = {"owner", "schedule", "run_id", "attempt"}
#: The names of the only event whose name depends on its fields.
REFUSALS = ("run_refused", "run_redelivered")


class LogCall(NamedTuple):
    event: str
    logger: str
    level: str
    fields: frozenset[str]


def documented() -> set[LogCall]:
    """Return each event, logger and level of the tables, with its fields."""
    calls = set()
    for line in REFERENCE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 4 or not cells[0].startswith("`"):
            continue
        names, _, modules = cells[0].partition(" from ")
        events, loggers, fields = (
            re.findall(r"`([\w.]+)`", text) for text in (names, modules or "`events`", cells[2])
        )
        fields += RUN_FIELDS if cells[2].startswith("the run") else ()
        levels = re.findall(r"debug|info|warning|error", cells[1])
        for number, event in enumerate(events):
            level = levels[number if len(levels) == len(events) else 0]
            calls |= {LogCall(event, logger, level, frozenset(fields)) for logger in loggers}
    return calls


def emitted() -> Iterator[LogCall]:
    for event_type in LOGGED:
        record = event_type.log
        level = "log" if callable(record.level) else logging.getLevelName(record.level).lower()
        shown = frozenset(logs.fields_of(event_type, record))
        for name in REFUSALS if callable(record.name) else (record.name,):
            yield LogCall(name, "events", level, shown)
    for name in logs.BATCHES.values():
        yield LogCall(name, "events", "info", frozenset({"sent", "claimed", "runs"}))
    for path in sorted({*PACKAGE.rglob("*.py")} - {Path(logs.__file__)}):
        module = path.parent if path.name == "__init__.py" else path.with_suffix("")
        logger = ".".join(module.relative_to(PACKAGE).parts)
        tree = ast.parse(path.read_text())
        for call in log_calls(tree):
            keys = extra_of(call, tree, path)
            event = keys.pop("event", None)
            if event is not None:
                assert isinstance(call.func, ast.Attribute)
                assert isinstance(event, ast.Attribute)
                name = Event[event.attr].value
                yield LogCall(name, logger, call.func.attr, frozenset(keys))


def log_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "logger"
        ):
            yield node


def extra_of(call: ast.Call, tree: ast.AST, path: Path) -> dict[str, ast.expr]:
    extra = next((word.value for word in call.keywords if word.arg == "extra"), None)
    if not isinstance(extra, ast.Dict):
        # A record without an event.
        return {}
    keys = {}
    for key, value in zip(extra.keys, extra.values, strict=True):
        if key is None:
            keys |= fields_in(value, tree)
        else:
            assert isinstance(key, ast.Constant), f"{path}:{call.lineno}: name the fields"
            keys[str(key.value)] = value
    return keys


def fields_in(name: ast.expr, tree: ast.AST) -> dict[str, ast.expr]:
    """Return the fields of ``**name``, which one assignment of the module sets."""
    (fields,) = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(name)
    ]
    assert isinstance(fields, ast.Dict)
    return {
        ast.literal_eval(key): value
        for key, value in zip(fields.keys, fields.values, strict=True)
        if key
    }


def test_each_log_call_has_the_documented_logger_level_and_fields() -> None:
    # The level of `logger.log` is computed; the first documented one counts.
    levels = {(call.event, call.logger): call.level for call in documented()}
    actual = {
        call._replace(level=levels.get((call.event, call.logger), "warning"))
        if call.level == "log"
        else call
        for call in emitted()
    }
    assert sorted(actual - documented()) == []
    assert sorted(documented() - actual) == []


def test_each_event_is_documented_and_emitted() -> None:
    assert {call.event for call in documented()} == {event.value for event in Event}


def test_no_log_call_has_a_field_for_arguments_or_results() -> None:
    fields = {field for call in emitted() for field in call.fields}
    assert fields.isdisjoint({"args", "kwargs", "options", "result", "error", "traceback"})
