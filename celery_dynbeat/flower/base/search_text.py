"""The syntax of a search box. PURE.

owner:user:42 name:dig        each condition must hold
dig                           a text without a key has the first key of the page
owner:"" name:"daily report"  quotes: an empty value, white space, a *
customer:13                   an unknown key: text:customer:13, a part of an owner or a name
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from celery_dynbeat.common.text import cut

MAX_LENGTH = 2_000
#: The key of a part of an owner or a name. Each search box has it.
TEXT = "text"
_SHOWN = 60
# A term: a key and a colon, both optional, and a value. The value is quoted or has no quotes.
_TERM = re.compile(r'(?:(?P<key>\w+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]*))(?!\S)')
_PLAIN = re.compile(r'[^\s"*]+')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class SearchError(ValueError):
    """A text that is not a search. The message says what to write instead."""


def term(key: str, value: str) -> str:
    """Return ``key:value`` as a search box takes it, in quotes where they are needed."""
    if _PLAIN.fullmatch(value):
        return f"{key}:{value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{key}:"{escaped}"'


def search_text(values: Mapping[str, str | None]) -> str:
    """Return the text of a search. None means no condition."""
    return " ".join(term(key, value) for key, value in values.items() if value is not None)


def parse_terms(
    text: str, *, keys: Sequence[str], default: str, can_be_empty: str = "owner"
) -> Mapping[str, str]:
    """Return the value of each key in ``text``. Raises SearchError.

    A text without a key is a value of ``default``. A text with an unknown key is a value of
    ``text``, because owners contain colons. Only ``can_be_empty`` takes ``""``.
    """
    if len(text) > MAX_LENGTH:
        msg = f"The search has more than {MAX_LENGTH:,} characters."
        raise SearchError(msg)
    found: dict[str, str] = {}
    for match in _terms(text.strip()):
        key = match["key"] or default
        value = _value(match, key, can_be_empty)
        if key not in keys:
            key, value = TEXT, f"{key}:{value}"
        if key in found:
            raise _second_value(key, found[key], value, is_text=match["key"] is None)
        found[key] = value
    return found


def _terms(text: str) -> Iterator[re.Match[str]]:
    while text:
        match = _TERM.match(text)
        if match is None:
            msg = (
                f"The quotes in {_cut(text)} do not match. Write one pair around a value, as in"
                ' name:"daily report", and \\" for a quote in it.'
            )
            raise SearchError(msg)
        yield match
        text = text[match.end() :].lstrip()


def _value(match: re.Match[str], key: str, can_be_empty: str) -> str:
    if match["quoted"] is not None:
        value = _ESCAPED.sub(r"\1", match["quoted"])
        is_valid = bool(value) or key == can_be_empty
    else:
        value = match["plain"]
        is_valid = bool(value)
        if "*" in value:
            msg = (
                f"{_cut(match.group())}: * is not a wildcard. A search for a name finds"
                " all names that begin with it. An owner, task or tag must match exactly. To search"
                ' for an asterisk, write quotes, as in "a*".'
            )
            raise SearchError(msg)
    if not is_valid:
        hint = f' Write {key}:"" for the application itself.' if key == can_be_empty else ""
        msg = f"{key}: has no value.{hint}"
        raise SearchError(msg)
    return value


def _second_value(key: str, first: str, second: str, *, is_text: bool) -> SearchError:
    if is_text:
        together = term(key, _cut(f"{first} {second}"))
        return SearchError(
            f"There are two values for {key}. If a value contains white space, put it in quotes:"
            f" {together}"
        )
    return SearchError(f"{key}: occurs twice. A search can contain each key only once.")


def _cut(text: str) -> str:
    return cut(text, _SHOWN)
