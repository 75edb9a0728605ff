"""Command lines of Celery in files of the repository."""

from collections.abc import Sequence
from typing import Any

from celery.bin.celery import celery
from click import Context


def unknown_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words after ``celery -A app`` that no command accepts.

    click raises UsageError for a command or an option that does not exist.
    """
    return _parse(list(words), celery, Context(celery, info_name="celery"))


def _parse(words: list[str], group: Any, context: Context) -> Sequence[str]:
    name, command, words = group.resolve_command(context, words)
    context = Context(command, parent=context, info_name=name, **command.context_settings)
    if hasattr(command, "resolve_command"):
        return _parse(words, command, context)
    rest: Sequence[str] = command.make_parser(context).parse_args(words)[1]
    return rest
