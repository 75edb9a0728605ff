"""Texts of users and of servers, made safe for a message, a log record and a page."""

import re
import unicodedata
from base64 import b64encode
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_dynbeat.common.text import cut, escape, hide_secrets

#: Characters of a name or an error in a message.
DETAIL_LENGTH = 300
#: Behind a character that begins a mention or markup, so that no service reads it as such.
WORD_JOINER = "\u2060"
#: Not inside a word, such as an e-mail address or send_mail. Only <, a mention of all people and a
#: link of Markdown may also begin there. A scheme of a link without // is listed by its name,
#: because "user:42" is no link.
_MARKUP = re.compile(
    r"(?<!\w)[@*_`~]|<|\](?=\()|@(?=everyone|here|channel|all\b)|:(?=//)|www(?=\.)"
    r"|\b(?:mailto|tel|sms|callto|sips?|xmpp|skype|facetime|geo|magnet|data|javascript|file)(?=:)",
    re.IGNORECASE,
)


def shown(text: str) -> str:
    """Return a text of a user that cannot break the layout, mention people or become markup."""
    line = escape(" ".join(text.split()))
    # Services read full-width letters and signs like the ASCII ones.
    ends = [match.end() for match in _MARKUP.finditer("".join(map(_folded, line)))]
    parts = [line[start:end] for start, end in zip([0, *ends], [*ends, len(line)], strict=True)]
    return cut(WORD_JOINER.join(parts), DETAIL_LENGTH)


def _folded(character: str) -> str:
    """Return the character that services read, if it is a single one."""
    folded = unicodedata.normalize("NFKC", character)
    return folded if len(folded) == 1 else character


def without_secrets(text: str, url: str) -> str:
    """Return ``text`` without any part of the URL except its scheme."""
    scheme, _, rest = url.partition("://")
    parts = {each for form in (rest, unquote(rest)) for each in re.split(r"[/:@?&=,#+\s]", form)}
    secrets = (parts | _passwords(url)) - {scheme}
    return hide_secrets(text, secrets)


def _passwords(url: str) -> set[str]:
    """Return user, password and values of the query, and the Basic form of the password."""
    try:
        split = urlsplit(url)
        user, password = unquote(split.username or ""), unquote(split.password or "")
    except ValueError:
        return set()
    basic = b64encode(f"{user}:{password}".encode()).decode()
    values = {value for _, value in parse_qsl(split.query)}
    return {user, password, basic.rstrip("="), *values}
