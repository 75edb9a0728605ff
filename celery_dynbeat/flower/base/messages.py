"""The message that a page shows once after an action, stored in a signed cookie."""

import json
from dataclasses import asdict, dataclass, replace

from tornado.web import RequestHandler

from celery_dynbeat.common.text import escape

COOKIE = "dynbeat_message"
#: Browsers drop a cookie of more than 4,096 bytes. JSON can double a text; base64 adds a third.
_MAX_BYTES = 1_400
_CUT = " ..."


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence for the person who changed something. ``kind`` names a kind of Bootstrap alert."""

    text: str
    kind: str = "success"


def leave(handler: RequestHandler, message: Message) -> None:
    """Show the message on the next page."""
    value = json.dumps(
        asdict(replace(message, text=_cut(escape(message.text)))), ensure_ascii=False
    )
    handler.set_signed_cookie(COOKIE, value, expires_days=None, httponly=True, samesite="Lax")


def take(handler: RequestHandler) -> Message | None:
    """Return the message of the last action, once. None if there is none."""
    value = handler.get_signed_cookie(COOKIE, max_age_days=1)
    if value is None:
        return None
    handler.clear_cookie(COOKIE)
    return Message(**json.loads(value))


def _cut(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= _MAX_BYTES:
        return text
    # A character can have several bytes, so the last character may be incomplete.
    return encoded[:_MAX_BYTES].decode(errors="ignore") + _CUT
