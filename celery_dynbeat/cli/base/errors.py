"""Each error that an operator can cause or repair becomes one line on stderr and an exit status.

An error that is none of these is a bug of this package; Python prints its traceback.
"""

import difflib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click
from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import OperationalError

from celery_dynbeat.api import dynbeat_of
from celery_dynbeat.common.errors import (
    CalendarInUseError,
    CalendarNotFoundError,
    ConfigurationError,
    DynbeatError,
    RunNotFoundError,
    ScheduleExistsError,
    ScheduleHeldError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.text import (
    MAX_PAGE_SIZE,
    described_owner,
    escape,
    hide_secrets,
    with_application,
)

FAILED = 1
#: The statuses of a shell for a program that ended by SIGINT and by SIGPIPE.
INTERRUPTED = 130
CLOSED_PIPE = 141


@contextmanager
def reporting_errors(context: click.Context, *, as_json: bool) -> Iterator[None]:
    """End the command with one line and an exit status after an error in the block."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        context.exit(CLOSED_PIPE)
    except (KeyboardInterrupt, click.Abort):
        click.echo("\ninterrupted", err=True)
        context.exit(INTERRUPTED)
    except _expected() as error:
        fail(context, error_text(context, error), as_json=as_json)
    except OSError as error:
        # Such as a full disk: not even the error can be written to stdout.
        _discard_output()
        click.echo(f"the output cannot be written: {escape(str(error))}", err=True)
        context.exit(FAILED)


def application_of(context: click.Context) -> str | None:
    """Return the value of ``-A`` on the command line, or None if it is not given."""
    given = context.find_root().params.get("app")
    return given if isinstance(given, str) else None


def _expected() -> tuple[type[Exception], ...]:
    # A late import: a command that prints its help opens no database.
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    # ImportError means that the module of config_from_object() or a driver is missing.
    return (DynbeatError, SQLAlchemyError, OperationalError, ImproperlyConfigured, ImportError)


def fail(context: click.Context, text: str, *, as_json: bool) -> NoReturn:
    """Print the error and exit with status 1. ``--json`` prints an object on stdout."""
    text = with_application(text, application_of(context))
    if as_json:
        click.echo(json.dumps({"ok": False, "error": text}))
    else:
        click.echo(escape(text), err=True)
    context.exit(FAILED)


def _discard_output() -> None:
    # Python flushes stdout at its end, which would raise again (the note on SIGPIPE in the
    # documentation of the module signal).
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def error_text(context: click.Context, error: Exception) -> str:
    """Return the error in one line, with the words of the command line."""
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - as above

    if isinstance(error, DBAPIError):
        return _database_error(context, error)
    if isinstance(error, ConfigurationError) and not hasattr(context.obj.app, "dynbeat"):
        return f"{error} (celery -A MODULE dynbeat ...)"
    if isinstance(error, ImportError):
        return f"the application cannot be loaded: {error}; check its imports and configuration"
    if isinstance(error, ScheduleNotFoundError):
        return _not_found(context, error)
    in_words = _WORDS.get(type(error))
    return " ".join(str(error).split()) if in_words is None else in_words(error)


def _not_found(context: click.Context, error: ScheduleNotFoundError) -> str:
    calls = dynbeat_of(context.obj.app).schedules.for_owner(error.owner)
    # Of an owner with many schedules, those that begin alike.
    names = [each.name for each in calls.list(limit=MAX_PAGE_SIZE)]
    if len(names) == MAX_PAGE_SIZE:
        alike = calls.list(name_prefix=error.name[:3], limit=MAX_PAGE_SIZE)
        names = [each.name for each in alike]
    near = difflib.get_close_matches(error.name, names, n=3)
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return (
        f"{_owner(error.owner)} has no schedule named {error.name!r}; {meant}`dynbeat list` shows "
        "existing schedules, and with --owner the schedules of another owner"
    )


def _exists(error: ScheduleExistsError) -> str:
    return (
        f"{_owner(error.owner)} already has a schedule named {error.name!r}; choose another name,"
        " or change it with `dynbeat update`"
    )


def _held(error: ScheduleHeldError) -> str:
    return f"{error.hold}; wait for its end, or end it with `dynbeat release`"


def _no_run(error: RunNotFoundError) -> str:
    whose = "there is" if error.owner is None else f"{_owner(error.owner)} has"
    return f"{whose} no run {error.run_id}; `dynbeat runs` shows those that exist"


def _no_calendar(error: CalendarNotFoundError) -> str:
    return f"there is no calendar {error.name!r}; `dynbeat calendars list` shows those that exist"


def _calendar_in_use(error: CalendarInUseError) -> str:
    number = f"{error.schedules:,}" if error.is_exact else f"more than {error.schedules:,}"
    return (
        f"calendar {error.name!r} is used by {number} schedules; give them other triggers with"
        " `dynbeat update` first"
    )


#: The texts of these errors name calls of the API.
_WORDS: Mapping[type[Exception], Callable[[Any], str]] = {
    ScheduleExistsError: _exists,
    ScheduleHeldError: _held,
    RunNotFoundError: _no_run,
    CalendarNotFoundError: _no_calendar,
    CalendarInUseError: _calendar_in_use,
}


def _owner(owner: str) -> str:
    return described_owner(owner) if owner else "the application (owner '')"


def _database_error(context: click.Context, error: Exception) -> str:
    # A driver's message names neither the database nor the setting.
    database = dynbeat_of(context.obj.app).context.database
    text = hide_secrets(str(error).partition("\n")[0], [str(database.engine.url.password or "")])
    hint = "check dynbeat_database_url, its server and the account's rights"
    return f"{database.shown_url}: {text}; {hint}"
