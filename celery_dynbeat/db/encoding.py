"""A database whose encoding is not UTF-8: its texts of errors are escaped, all else is refused.

PostgreSQL is asked for the encoding when the tables are checked. The outcome of a task must never
be lost because of a letter in the text of its exception, so such a text is stored as the database
can take it. A name or an argument is the user's: changed without a word it would be another one.
"""

import codecs
import logging
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect

from celery_dynbeat.common.events import Event
from celery_dynbeat.db.dialects import capabilities_of

logger = logging.getLogger(__name__)

_codecs: WeakKeyDictionary[Dialect, str] = WeakKeyDictionary()
#: PostgreSQL's names that Python does not know as they are.
_PREFIXES = {"WIN": "cp", "KOI8": "koi8_"}


def check_encoding(connection: Connection, *, shown_url: str) -> str | None:
    """Return the encoding of a database that cannot store every text, else None; warn once."""
    dialect = connection.dialect
    encoding = capabilities_of(dialect).limited_encoding(connection)
    if encoding is not None and dialect not in _codecs:
        _codecs[dialect] = _codec_of(encoding)
        logger.warning(
            "the encoding of %s is %s: names and arguments beyond it are refused, and texts of"
            " errors are stored with escapes; move to a database whose encoding is UTF8",
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
        # ASCII is a part of each encoding that a PostgreSQL server may have.
        return "ascii"


def escape_unstorable(text: str, dialect: Dialect) -> str:
    """Return ``text`` with escapes for what the database behind ``dialect`` cannot store."""
    codec = _codecs.get(dialect)
    return text if codec is None else text.encode(codec, "backslashreplace").decode(codec)


def escape_non_ascii(text: str) -> str:
    """Return ``text`` with escapes for all letters beyond ASCII, which every database stores."""
    return text.encode("ascii", "backslashreplace").decode()
