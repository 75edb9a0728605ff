"""Triggers from words: "every 5 minutes", "weekdays at 9", "in 40 hours".

docs/reference/triggers.md has the grammar. User input is untrusted, so its length is limited,
and it is read word by word. No regular expression matches more than one word.
"""

import difflib
import re

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers import kind_of, trigger_from_text
from celery_dynbeat.triggers.base import Trigger, require_text
from celery_dynbeat.triggers.phrases.grammar import Zones, take_phrase
from celery_dynbeat.triggers.phrases.reader import (
    VOCABULARY,
    PhraseError,
    PhraseReader,
    split_words,
)
from celery_dynbeat.triggers.zones import load_zone

#: The most characters of words. Texts of other formats may be longer.
MAX_WORDS_LENGTH = 200
#: The most words with corrections. The search for similar words takes about 0.1 ms for a word.
_MAX_CORRECTED = 20
_EXAMPLES = (
    "write words such as 'every 5 minutes', 'weekdays at 9' or 'first of the month at 9:30 pm', or"
    " a cron expression such as '0 9 * * mon-fri'"
)
#: The beginnings of the formats of ``trigger_from_text``: two fields of a cron expression, a name
#: such as @daily, a duration, an instant.
_OTHER_FORMAT = re.compile(
    r"\s*([0-9*?/,()hr-]+\s+[0-9*?/,()hr-]+(\s|$)|@|p[t0-9]|r[0-9]*/|[0-9]{4}-[0-9](?!.*\bat\b))",
    re.ASCII | re.IGNORECASE,
)
_ZONE = re.compile(r"utc|[a-z][a-z0-9_+-]*/[a-z0-9_+/-]+", re.IGNORECASE)


def trigger_from_words(
    text: str, *, timezone: str | None = None, date_timezone: str | None = None
) -> Trigger:
    """See ``Trigger.from_words``."""
    text = require_text(text, field="trigger", example="weekdays at 9")
    zones = Zones(_checked(timezone), _checked(timezone or date_timezone))
    try:
        return _from_words(text, zones)
    except PhraseError as error:
        if _OTHER_FORMAT.match(text) or kind_of(text) == "rrule":
            trigger = trigger_from_text(text)
            return trigger if timezone is None else trigger.in_zone(timezone)
        message = f"trigger {shorten(text)} is not understood: {error}; {_suggestion(text, zones)}"
        raise InvalidTriggerError(f"{message}{_EXAMPLES}", field="trigger") from error


def _checked(zone: str | None) -> str | None:
    if zone is not None:
        load_zone(require_text(zone, field="timezone", example="Asia/Seoul"))
    return zone


def _from_words(text: str, zones: Zones) -> Trigger:
    """Return the trigger for words. Raises ``PhraseError``, or an error of the zone."""
    if len(text) > MAX_WORDS_LENGTH:
        raise PhraseError(f"it has {len(text)} characters; at most {MAX_WORDS_LENGTH} are allowed")
    words, zone = _split_zone(text)
    if zone is None:
        return take_phrase(PhraseReader(split_words(words)), zones)
    trigger = take_phrase(PhraseReader(split_words(words)), Zones(zone, zone))
    if trigger.kind == "every" and trigger.timezone is None:
        raise PhraseError(f"hours and shorter units have no time zone; leave out {zone}")
    return trigger


def _split_zone(text: str) -> tuple[str, str | None]:
    """Return the words without the zone at their end, and the zone."""
    words = text.rsplit(maxsplit=1)
    # describe() writes "once at 2026-12-24 18:00 (Asia/Seoul)".
    zone = words[1].removeprefix("(").removesuffix(")") if words[1:] else ""
    if _ZONE.fullmatch(zone) is None:
        return text, None
    zone = "UTC" if zone.upper() == "UTC" else zone
    return words[0].removesuffix(","), zone


def _suggestion(text: str, zones: Zones) -> str:
    """Return ``did you mean 'daily at 9'? Or `` if similar words are a phrase, else ""."""
    words, zone = _split_zone(text[:MAX_WORDS_LENGTH])
    typed = split_words(words)
    if len(typed) > _MAX_CORRECTED:
        return ""
    similar = [_similar(word) for word in typed]
    corrected = " ".join(similar).replace(" ,", ",") + (f", {zone}" if zone else "")
    try:
        _from_words(corrected, zones)
    except (PhraseError, InvalidTriggerError):
        return ""
    return f"did you mean {corrected!r}? Or "


def _similar(word: str) -> str:
    """Return the known word that is most similar to ``word``, or else ``word``."""
    if word in VOCABULARY or not word.isalpha():
        return word
    return next(iter(difflib.get_close_matches(word[:40], VOCABULARY, n=1)), word)
