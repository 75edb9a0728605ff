"""Remember which URLs have accepted a message, without storing them.

A mark is a hash with a random salt of its message. A URL can contain a short password, so the hash
is slow: PBKDF2 with the number of rounds that OWASP recommends. Marks are computed only for a
message that some URLs of its target have accepted and others have not.
"""

import hashlib
import secrets
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any

ROUNDS = 600_000
_SALT_BYTES, _HASH_BYTES = 16, 16


@lru_cache(maxsize=256)
def _mark(url: str, salt: str) -> str:
    found = hashlib.pbkdf2_hmac("sha256", url.encode(), salt.encode(), ROUNDS, _HASH_BYTES)
    return f"{salt}:{found.hex()}"


def _salts(marks: Iterable[Any]) -> Sequence[str]:
    return sorted({mark.partition(":")[0] for mark in marks if isinstance(mark, str)})


def marked(urls: Iterable[str], marks: Collection[Any]) -> Collection[str]:
    """Return the URLs that ``marks`` contains, in their order. Unreadable marks are ignored."""
    salts = _salts(marks)
    return [url for url in urls if any(_mark(url, salt) in marks for salt in salts)]


def add_marks(marks: Sequence[Any], urls: Iterable[str]) -> Sequence[str]:
    """Return ``marks`` with those of ``urls``, all with the same salt if possible."""
    salt = next(iter(_salts(marks)), None) or secrets.token_hex(_SALT_BYTES)
    kept = [mark for mark in marks if isinstance(mark, str)]
    return [*kept, *(_mark(url, salt) for url in urls)]
