"""The owner of each imported schedule."""

from collections.abc import Callable
from typing import Any

from celery.utils.imports import import_from_cwd, symbol_by_name

from celery_dynbeat.common.errors import ConfigurationError, InvalidScheduleError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.importing.found import Found


def owner_function(path: str | None, *, default: str) -> Callable[[Found], str]:
    """Return the function that gives the owner of a found schedule.

    ``path`` names a function such as ``proj.owners:of_row``. It takes the row of the source as a
    mapping, and returns the owner, or None for ``default``. Raises ConfigurationError.
    """
    if path is None:
        return lambda _found: default
    try:
        # `celery -A` does the same, because the console script does not search the working
        # directory.
        of_row: Any = symbol_by_name(path, imp=import_from_cwd)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"--owner-from {path}: {error}; write it like proj.owners:of_row"
        raise ConfigurationError(message) from error
    if not callable(of_row):
        raise ConfigurationError(f"--owner-from {path}: is not a function")

    def owner_of(found: Found) -> str:
        try:
            owner = of_row(found.row)
        # The application's function can raise any error.
        except Exception as error:
            rule = f"raised {shorten(error)} for {found.name!r}"
            raise InvalidScheduleError(f"--owner-from {path} {rule}", field="owner") from error
        if owner is None:
            return default
        if not isinstance(owner, str):
            rule = f"returned {shorten(owner)} for {found.name!r}: it must return a string or None"
            raise InvalidScheduleError(f"--owner-from {path} {rule}", field="owner")
        return owner

    return owner_of
