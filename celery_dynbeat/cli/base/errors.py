"""Each error that an operator can cause or repair becomes one line on stderr and an exit status.

An error that is none of these is a bug of this package; Python prints its traceback.
"""

import difflib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import click
from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import OperationalError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from celery_dynbeat.api import dynbeat_of
from celery_dynbeat.common.errors import (
    ConfigurationError,
    ConflictError,
    DynbeatError,
    NotFoundError,
    ScheduleExistsError,
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
# ImportError means that the module of config_from_object() or a driver is missing.
_EXPECTED = (DynbeatError, SQLAlchemyError, OperationalError, ImproperlyConfigured, ImportError)


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
    except _EXPECTED as error:
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
    if isinstance(error, DBAPIError):
        return _database_error(context, error)
    if isinstance(error, ConfigurationError) and not hasattr(context.obj.app, "dynbeat"):
        return f"{error} (celery -A MODULE dynbeat ...)"
    if isinstance(error, ImportError):
        return f"the application cannot be loaded: {error}; check its imports and configuration"
    if isinstance(error, NotFoundError):
        return _not_found(context, error)
    return _in_words(error) or " ".join(str(error).split())


def _in_words(error: Exception) -> str | None:
    """Return the text of an error whose own text names calls of the API, or None."""
    if isinstance(error, ScheduleExistsError):
        return (
            f"{_owner(error.owner)} already has a schedule named {error.name!r}; choose another"
            " name, or change it with `dynbeat update`"
        )
    if isinstance(error, ConflictError) and error.code == "held":
        owner, held = error.params["owner"], error.params["hold"]
        scope = "--all-owners" if owner is None else f"--owner {shlex.quote(owner)}"
        return f"{held}; wait for its end, or end it with `dynbeat hold --release {scope}`"
    if isinstance(error, ConflictError) and error.code == "in_use":
        name, used_by = error.params["name"], error.params["used_by"]
        return (
            f"calendar {name!r} is used by {used_by}; give them other triggers with `dynbeat"
            " update`, or other quiet hours, first"
        )
    return None


def _not_found(context: click.Context, error: NotFoundError) -> str:
    if error.kind == "schedule":
        return _no_schedule(context, error)
    listed = {"run": "runs", "calendar": "calendars list"}.get(error.kind)
    if listed is None:
        return " ".join(str(error).split())
    whose = "there is" if error.owner is None else f"{_owner(error.owner)} has"
    name = error.name if error.kind == "run" else repr(error.name)
    return f"{whose} no {error.kind} {name}; `dynbeat {listed}` shows those that exist"


def _no_schedule(context: click.Context, error: NotFoundError) -> str:
    owner = error.owner or ""
    calls = dynbeat_of(context.obj.app).schedules.for_owner(owner)
    # Of an owner with many schedules, those that begin alike.
    names = [each.name for each in calls.list(limit=MAX_PAGE_SIZE)]
    if len(names) == MAX_PAGE_SIZE:
        alike = calls.list(name_prefix=error.name[:3], limit=MAX_PAGE_SIZE)
        names = [each.name for each in alike]
    near = difflib.get_close_matches(error.name, names, n=3)
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return (
        f"{_owner(owner)} has no schedule named {error.name!r}; {meant}`dynbeat list` shows "
        "existing schedules, and with --owner the schedules of another owner"
    )


def _owner(owner: str) -> str:
    return described_owner(owner) if owner else "the application (owner '')"


def _database_error(context: click.Context, error: Exception) -> str:
    # A driver's message names neither the database nor the setting.
    database = dynbeat_of(context.obj.app).context.database
    text = hide_secrets(str(error).partition("\n")[0], [str(database.engine.url.password or "")])
    hint = "check dynbeat_database_url, its server and the account's rights"
    return f"{database.shown_url}: {text}; {hint}"
