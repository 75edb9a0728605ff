"""A problem or a warning of a health report."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem or warning: a stable ``code``, a description, and a hint how to fix it."""

    code: str
    text: str
    hint: str
