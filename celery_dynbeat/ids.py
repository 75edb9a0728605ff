"""Run ids: UUIDs of version 7 (RFC 9562, section 5.7), ordered by time: inserts stay local."""

import secrets
from datetime import UTC, datetime
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run_id(now: datetime) -> str:
    """Return a new id for a run made at ``now``."""
    return _uuid(now, secrets.randbits(80))


def first_run_id(made_at: datetime) -> str:
    """Return the id before which the ids of all runs made earlier than ``made_at`` stand."""
    return _uuid(made_at, 0)


def _uuid(now: datetime, random: int) -> str:
    elapsed = max(now, _EPOCH) - _EPOCH
    milliseconds = (
        elapsed.days * 86_400_000 + elapsed.seconds * 1_000 + elapsed.microseconds // 1_000
    )
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_run_id(text: object) -> bool:
    """Return whether ``text`` can be a run id at all; a message may claim anything."""
    if not isinstance(text, str):
        return False
    try:
        uuid = UUID(text)
    except ValueError:
        return False
    return uuid.version == 7 and str(uuid) == text  # noqa: PLR2004 - the version this module makes
