"""Each error that an operator can cause or repair becomes one line on stderr and an exit status.

An error that is none of these is a bug of this package; Python prints its traceback.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click
from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import OperationalError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from celery_dynbeat.client import dynbeat_of
from celery_dynbeat.common.errors import (
    ConfigurationError,
    DynbeatError,
    HeldByOthersError,
    RerunNotFoundError,
    RunNotFoundError,
    ScheduleExistsError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.printable import escape

#: ImportError: the module of config_from_object(), or a driver.
EXPECTED = (DynbeatError, SQLAlchemyError, OperationalError, ImproperlyConfigured, ImportError)
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
    except EXPECTED as error:
        fail(context, error_text(context, error), as_json=as_json)
    except OSError as error:
        # Such as a full disk: not even the error can be written to stdout.
        _discard_output()
        click.echo(f"the output cannot be written: {escape(str(error))}", err=True)
        context.exit(FAILED)


def fail(context: click.Context, text: str, *, as_json: bool) -> NoReturn:
    """Print the error and exit with status 1. ``--json`` prints an object on stdout."""
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
    in_words = _WORDS.get(type(error))
    return " ".join(str(error).split()) if in_words is None else in_words(error)


def _not_found(error: ScheduleNotFoundError) -> str:
    return (
        f"{_owner(error.owner)} has no schedule named {error.name!r}; `dynbeat list` shows those"
        " that exist, with --owner those of another owner"
    )


def _exists(error: ScheduleExistsError) -> str:
    return (
        f"{_owner(error.owner)} already has a schedule named {error.name!r}; choose another name,"
        " or change it with `dynbeat update`"
    )


def _held_by_others(error: HeldByOthersError) -> str:
    scope = "everything" if error.owner is None else _owner(error.owner)
    actors = ", ".join(error.actors)
    return f"{scope} is held by {actors}; `dynbeat holds` shows why, --all-actors ends these holds"


def _no_run(error: RunNotFoundError) -> str:
    whose = "there is" if error.owner is None else f"{_owner(error.owner)} has"
    return f"{whose} no run {error.run_id}; `dynbeat runs` shows those that exist"


def _no_rerun(error: RerunNotFoundError) -> str:
    whose = "there is" if error.owner is None else f"{_owner(error.owner)} has"
    return f"{whose} no rerun {error.rerun_id}; `dynbeat rerun --list` shows those that exist"


#: The texts of these errors name calls of the API.
_WORDS: Mapping[type[Exception], Callable[[Any], str]] = {
    ScheduleNotFoundError: _not_found,
    ScheduleExistsError: _exists,
    HeldByOthersError: _held_by_others,
    RunNotFoundError: _no_run,
    RerunNotFoundError: _no_rerun,
}


def _owner(owner: str) -> str:
    return f"owner {owner!r}" if owner else "the application (owner '')"


def _database_error(context: click.Context, error: DBAPIError) -> str:
    # A driver's message names neither the database nor the setting.
    database = dynbeat_of(context.obj.app).context.database
    text = _without_password(str(error).partition("\n")[0], database.engine.url)
    hint = "check dynbeat_database_url, its server and the account's rights"
    return f"{database.shown_url}: {text}; {hint}"


def _without_password(text: str, url: Any) -> str:
    password = str(url.password or "")
    return text.replace(password, "***") if password else text
