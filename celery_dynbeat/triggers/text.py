"""Read a trigger from its text. ``Trigger.to_text`` writes it.

    text  = part or term {"or" term}
    term  = rule or "(" text ")"
    part  = term
            ["on the" ("next" or "previous") "business day of" CALENDAR ["in" ZONE]]
            ["except" item {"," item} ["in" ZONE]]
    item  = DATE or "calendar" CALENDAR or "(" text ")"     (a CALENDAR can be in quotes)
    rule  = ["CRON_TZ=" ZONE or "TZ=" ZONE] (cron expression, duration, repeating interval, instant,
            "in" duration, lines of RFC 5545, or event of the sun with its place)

Each level of parentheses is scanned once. Words inside parentheses belong to the next level. A text
without these words is one rule, which the class of its kind reads.
"""

import re
from datetime import date
from typing import NamedTuple

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import BYTE_ORDER_MARK, shorten
from celery_dynbeat.triggers.base import (
    MAX_TEXT_LENGTH,
    Trigger,
    parse_unchecked,
    require_text,
)
from celery_dynbeat.triggers.composite.any_of import MAX_TRIGGERS, AnyOf
from celery_dynbeat.triggers.composite.base import MAX_DEPTH, prepared
from celery_dynbeat.triggers.composite.excluding import MAX_TRIGGERS as MAX_EXCLUDED_TRIGGERS
from celery_dynbeat.triggers.composite.excluding import Excluding, read_date
from celery_dynbeat.triggers.composite.on_business_day import OnBusinessDay
from celery_dynbeat.triggers.iso8601 import is_local, parse_instant
from celery_dynbeat.triggers.once import Once, parse_delay
from celery_dynbeat.triggers.zones import load_zone

#: The beginnings of rules that are not cron expressions.
_BEGINNINGS = (
    ("every", re.compile(r"P|R\d*/|\d+(\.\d+)?\s*(s|m|min|h|d|w)$", re.ASCII | re.IGNORECASE)),
    ("once", re.compile(r"\d{4}-\d|in\s", re.ASCII | re.IGNORECASE)),
    ("rrule", re.compile(r"RRULE|DTSTART|RDATE|EXDATE|EXRULE|[A-Z;=,+\d-]*FREQ=", re.IGNORECASE)),
    ("solar", re.compile(r"dawn_|dusk_|sun|solar_", re.IGNORECASE)),
)
#: The kind is selected by this number of characters.
_BEGINNING_LENGTH = 200
_ZONE = re.compile(r"(?:CRON_)?TZ=(\S*)\s*", re.IGNORECASE)
_DELAY = re.compile(r"in\s+", re.IGNORECASE)
_BUSINESS_DAY = re.compile(r"(\S+) business day of (\S+)(?: in (\S+))?", re.IGNORECASE)
_CALENDAR = re.compile(r"calendar (\S+)", re.IGNORECASE)
_OR, _ON, _EXCEPT, _IN = " or ", " on the ", " except ", " in "
_HIDDEN = "."


def trigger_from_text(text: str, *, timezone: str | None = None) -> Trigger:
    """See ``Trigger.from_text``."""
    text = require_text(text, field="trigger", example="0 9 * * mon-fri")
    text = text.removeprefix(BYTE_ORDER_MARK)
    if len(text) > MAX_TEXT_LENGTH:
        limit = f"at most {MAX_TEXT_LENGTH} are allowed"
        message = f"{shorten(text)} has {len(text)} characters; {limit}"
        raise InvalidTriggerError(message, field="trigger")
    piece = _Piece.of(" ".join(text.split()))
    if piece.is_combined:
        return _read(piece, timezone, depth=0).checked()
    # With its line breaks, at which RFC 5545 folds long lines.
    return _read_rule(text, timezone).checked()


class _Piece(NamedTuple):
    """A part of a text, in which single blanks separate the words.

    ``mask`` has the same length: letters in lower case, and no characters in parentheses.
    """

    text: str
    mask: str

    @classmethod
    def of(cls, text: str) -> "_Piece":
        depth, mask = 0, list[str]()
        for character in text:
            depth -= character == ")" and depth > 0
            # The lower case of some other letters is longer.
            lower = character.lower() if character.isascii() else character
            mask.append(_HIDDEN if depth else lower)
            depth += character == "("
        return cls(text, "".join(mask))

    @property
    def is_combined(self) -> bool:
        """Whether it is in parentheses or has a word that combines rules."""
        return self.mask[:1] == "(" or any(word in self.mask for word in (_OR, _ON, _EXCEPT))

    def split(self, separator: str) -> "list[_Piece]":
        """Return the pieces between the separators, without blanks around them."""
        pieces, start = list[_Piece](), 0
        for mask in self.mask.split(separator):
            text = self.text[start : start + len(mask)]
            pieces.append(_Piece(text.strip(), mask.strip()))
            start += len(mask) + len(separator)
        return pieces

    def in_parentheses(self) -> "_Piece | None":
        """Return what is in the parentheses around the whole piece, None without them."""
        is_group = self.mask[:1] == "(" and self.mask[-1:] == ")" and self.mask.count("(") == 1
        return _Piece.of(self.text[1:-1].strip()) if is_group else None


def _read(piece: _Piece, timezone: str | None, *, depth: int) -> Trigger:
    if depth > MAX_DEPTH:
        reason = f"more than {MAX_DEPTH} parentheses inside each other"
        raise InvalidTriggerError(f"{shorten(piece.text)}: {reason}", field="trigger")
    terms = piece.split(_OR)
    if len(terms) > MAX_TRIGGERS:
        reason = f"{len(terms)} triggers, but at most {MAX_TRIGGERS} are allowed"
        raise InvalidTriggerError(f"{shorten(piece.text)}: {reason}", field="triggers")
    if len(terms) > 1 and any(word in piece.mask for word in (_ON, _EXCEPT)):
        reason = (
            "put what 'except' or 'on the' applies to into parentheses: '(A or B) except C', or"
            " 'A or (B except C)'"
        )
        raise InvalidTriggerError(f"{shorten(piece.text)}: {reason}", field="trigger")
    triggers = prepared(_read_term(term, timezone, depth=depth) for term in terms)
    return AnyOf(*triggers) if len(triggers) > 1 else triggers[0]


def _read_term(term: _Piece, timezone: str | None, *, depth: int) -> Trigger:
    kept, *excluded = term.split(_EXCEPT)
    base, *moved = kept.split(_ON)
    if len(excluded) > 1 or len(moved) > 1:
        reason = "'except' or 'on the' occurs twice; put the first part into parentheses"
        raise InvalidTriggerError(f"{shorten(term.text)}: {reason}", field="trigger")
    group = base.in_parentheses()
    if group is None:
        trigger = _read_rule(base.text, timezone)
    else:
        trigger = _read(group, timezone, depth=depth + 1)
    for days in moved:
        trigger = _on_business_day(trigger, days.text)
    for what in excluded:
        trigger = _excluding(trigger, what, timezone, depth=depth)
    return trigger


def _on_business_day(trigger: Trigger, text: str) -> Trigger:
    match = _BUSINESS_DAY.fullmatch(text)
    if match is None:
        reason = "write such as '0 9 1 * * on the next business day of holidays-de'"
        raise InvalidTriggerError(f"on the {shorten(text)}: {reason}", field="trigger")
    direction, calendar, zone = match.groups()
    return OnBusinessDay(trigger, direction.lower(), calendar=_unquoted(calendar), timezone=zone)


def _unquoted(name: str) -> str:
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name


def _excluding(trigger: Trigger, what: _Piece, timezone: str | None, *, depth: int) -> Trigger:
    place, zone = what.mask.rfind(_IN), None
    if place > what.mask.rfind(","):
        zone = what.text[place + len(_IN) :]
        what = _Piece(what.text[:place], what.mask[:place])
    dates, calendars, groups = list[date](), list[str](), list[_Piece]()
    for item in what.split(","):
        if (group := item.in_parentheses()) is not None:
            groups.append(group)
        elif match := _CALENDAR.fullmatch(item.text):
            calendars.append(_unquoted(match[1]))
        else:
            dates.append(read_date(item.text))
    if len(groups) > MAX_EXCLUDED_TRIGGERS:
        reason = f"{len(groups)} triggers, but at most {MAX_EXCLUDED_TRIGGERS} are allowed"
        raise InvalidTriggerError(f"except {shorten(what.text)}: {reason}", field="excluded")
    triggers = prepared(_read(group, timezone, depth=depth + 1) for group in groups)
    return Excluding(trigger, *dates, *triggers, timezone=zone, calendars=calendars)


def _read_rule(text: str, timezone: str | None) -> Trigger:
    """Return the trigger of a text without words that combine rules."""
    rule, zone = text.strip(), None
    if match := _ZONE.match(rule):
        zone, rule = match[1], rule[match.end() :]
        load_zone(zone)
        if rule.startswith("("):
            reason = "write the zone in each part, inside the parentheses"
            raise InvalidTriggerError(f"{shorten(text)}: {reason}", field="trigger")
    if zone is not None and is_local(rule):
        return _read_kind(rule, None, zone)
    trigger = _read_kind(rule, zone, timezone)
    if zone is not None and trigger.timezone != zone:
        if trigger.timezone is None:
            reason = "the rule does not depend on a time zone"
        else:
            reason = f"the rule names the zone {trigger.timezone} itself"
        message = f"time zone {zone!r}: {reason}; leave TZ={zone} out"
        raise InvalidTriggerError(message, field="timezone")
    return trigger


def _read_kind(rule: str, zone: str | None, timezone: str | None) -> Trigger:
    kind = kind_of(rule)
    if kind == "once":
        if match := _DELAY.match(rule):
            return Once.after(parse_delay(rule[match.end() :]))
        clock = None if timezone is None else load_zone(timezone)
        return Once(parse_instant(rule, field="at", zone=clock))
    try:
        return parse_unchecked(kind, rule, zone)
    except InvalidTriggerError as error:
        # There is an error in a field, or a name such as @daily, so the text is meant as a cron
        # expression.
        if kind != "cron" or error.field is not None or rule.startswith("@"):
            raise
        message = (
            f"{error}; or write a duration ('PT5M', '5m'), an instant ('2026-11-21T09:00:00Z') or a"
            " recurrence rule ('FREQ=WEEKLY;BYDAY=MO')"
        )
        if not rule:
            raise InvalidTriggerError(message, field="trigger", code="required") from error
        raise InvalidTriggerError(message) from error


def kind_of(rule: str) -> str:
    """Return the kind that the first characters of a rule select."""
    beginning = rule[:_BEGINNING_LENGTH]
    return next((kind for kind, pattern in _BEGINNINGS if pattern.match(beginning)), "cron")
