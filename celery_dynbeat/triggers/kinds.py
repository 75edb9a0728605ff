"""The kinds of triggers, and where the class of each kind and each parser is.

A class is imported when it is needed first: most applications use two or three kinds.
"""

from importlib import import_module
from typing import Any

_PACKAGE = "celery_dynbeat.triggers"
_CLASSES = {
    "cron": ("cron.trigger", "Cron"),
    "every": ("every", "Every"),
    "once": ("once", "Once"),
    "rrule": ("rrule.trigger", "RRule"),
    "solar": ("solar", "Solar"),
    "any_of": ("composite.any_of", "AnyOf"),
    "excluding": ("composite.excluding", "Excluding"),
}
#: Their modules import the base class of the triggers, which calls them.
_PARSERS = {
    "text": ("parse", "trigger_from_text"),
    "words": ("phrases.parse", "trigger_from_words"),
    "json": ("parse", "trigger_from_json"),
}
#: The kinds that this version can read.
KINDS = tuple(_CLASSES)


def is_known(kind: str) -> bool:
    """Return whether this version has triggers of ``kind``. Case and outer spaces are ignored."""
    return kind.strip().lower() in _CLASSES


def load_class(kind: str) -> Any:
    """Return the class of the triggers of ``kind``, which is one of KINDS.

    Raises ``ImportError`` if its module cannot be read. That says nothing about any trigger.
    """
    module, name = _CLASSES[kind]
    try:
        return getattr(import_module(f"{_PACKAGE}.{module}"), name)
    except OSError as error:
        raise ImportError(f"the class of {kind!r} triggers cannot be loaded: {error}") from error


def load_parser(notation: str) -> Any:
    """Return the function that reads triggers in ``notation``: ``text``, ``words`` or ``json``."""
    module, name = _PARSERS[notation]
    return getattr(import_module(f"{_PACKAGE}.{module}"), name)
