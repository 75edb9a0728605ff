"""Escape error texts for a database whose encoding is not UTF-8.

The encoding of PostgreSQL is read when the tables are checked. A letter in an exception's text must
not prevent the worker from recording how a task ended, so error texts are stored with escapes.
Names and arguments are never escaped: they are the user's data. The database rejects the ones that
its encoding cannot store.
"""

import codecs
import logging
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect

from celery_dynbeat.common.events import Event
from celery_dynbeat.db.dialects import capabilities_of

logger = logging.getLogger(__name__)

_codecs: WeakKeyDictionary[Dialect, str] = WeakKeyDictionary()
#: Prefixes of PostgreSQL's encoding names, with the prefix of Python's codec.
_PREFIXES = {"WIN": "cp", "KOI8": "koi8_"}


def check_encoding(connection: Connection, *, shown_url: str) -> str | None:
    """Return the database's encoding if it cannot store every text, else None.

    Logs a warning once per dialect instance, and so once per engine.
    """
    dialect = connection.dialect
    encoding = capabilities_of(dialect).limited_encoding(connection)
    if encoding is not None and dialect not in _codecs:
        _codecs[dialect] = _codec_of(encoding)
        logger.warning(
            "the encoding of %s is %s: names and arguments outside it are rejected, and error"
            " texts are stored with escapes; move to a database whose encoding is UTF8",
            shown_url,
            encoding,
            extra={"event": Event.ENCODING_LIMITED},
        )
    return encoding


def _codec_of(encoding: str) -> str:
    for prefix, name in _PREFIXES.items():
        if encoding.startswith(prefix):
            encoding = name + encoding.removeprefix(prefix).lower()
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        # Every server encoding of PostgreSQL contains ASCII.
        return "ascii"


def escape_unstorable(text: str, dialect: Dialect) -> str:
    """Return ``text`` with escapes for the letters that the database cannot store."""
    codec = _codecs.get(dialect)
    return text if codec is None else text.encode(codec, "backslashreplace").decode(codec)


def escape_non_ascii(text: str) -> str:
    """Return ``text`` with escapes for all letters outside ASCII. Every database stores it."""
    return text.encode("ascii", "backslashreplace").decode()
