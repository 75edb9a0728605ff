"""The formatter: one JSON object for each log record, on one line.

A record always becomes a line. A value without JSON form is shown as text, and a record that
cannot be formatted is shown without what fails.
"""

import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery_dynbeat.broker import claimed_run_id, schedule_of
from celery_dynbeat.broker.executed_task import executed_task, present_attempt
from celery_dynbeat.common.events import node_name
from celery_dynbeat.process.logs import celery_records
from celery_dynbeat.process.logs.json_values import dumps, text_of

#: The attributes of each record, and those that formatters of the standard library add.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OWN_LOGGERS = "celery_dynbeat."


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON.

    ``dynbeat_log_format = "json"`` sets it on Celery's handlers. In your own logging configuration,
    name it as the ``class`` of a formatter. A format and a date format have no effect.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON. Never raises, and does not change the record."""
        try:
            return dumps(_without_none(self._fields(record)))
        # A record may hold objects of the application, whose code can raise anything.
        except Exception as error:  # noqa: BLE001
            return dumps(_minimal(record, error))

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {
            **_envelope(record),
            "message": _message_of(record),
            **_task_fields(),
            **_own_fields(record),
            "exception": self._exception_of(record),
            "stack": record.stack_info,
            "extra": _extra_of(record) or None,
        }

    def _exception_of(self, record: logging.LogRecord) -> dict[str, str] | None:
        info = record.exc_info
        if not isinstance(info, tuple) or info[0] is None:
            # A handler of a queue replaces the exception by its text.
            return {"stack": record.exc_text} if record.exc_text else None
        error = info[1]
        module = f"{info[0].__module__}." if info[0].__module__ != "builtins" else ""
        return {
            "type": f"{module}{info[0].__qualname__}",
            "message": text_of(error),
            "stack": self._stack_of(info),
        }

    def _stack_of(self, info: Any) -> str:
        try:
            return self.formatException(info)
        # The text of an exception is code of the application.
        except Exception:  # noqa: BLE001
            return "".join(traceback.format_tb(info[2]))


def _envelope(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, UTC)
    return {
        "time": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name,
        "node": node_name(),
        "process": record.processName,
        "pid": record.process,
    }


def _message_of(record: logging.LogRecord) -> str:
    try:
        if celery_records.is_celerys(record):
            return celery_records.message_of(record)
        return record.getMessage()
    # A wrong number of arguments, or an argument without text.
    except Exception as error:  # noqa: BLE001
        return f"{text_of(record.msg)} (arguments not formatted: {type(error).__name__})"


def _task_fields() -> dict[str, Any]:
    """Return the fields of the task that logs."""
    executed = executed_task()
    if executed is None:
        return {}
    request = executed.request
    fields = {"task": executed.task.name, "task_id": request.id, "run_id": claimed_run_id(request)}
    if fields["run_id"] is not None:
        fields["owner"], fields["schedule"] = schedule_of(request)
        fields["attempt"] = present_attempt(request)
    return fields


def _own_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields of a record of this package or of Celery."""
    if record.name.startswith(_OWN_LOGGERS):
        return _without_none(_added_to(record))
    return celery_records.fields_of(record) if celery_records.is_celerys(record) else {}


def _extra_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return what other code added to its record. In an object, so that it shadows no field."""
    if record.name.startswith(_OWN_LOGGERS) or celery_records.is_celerys(record):
        return {}
    return _added_to(record)


def _added_to(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _minimal(record: logging.LogRecord, error: Exception) -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": text_of(record.levelname),
        "logger": text_of(record.name),
        "message": f"{text_of(record.msg)} (record not formatted: {type(error).__name__})",
    }
