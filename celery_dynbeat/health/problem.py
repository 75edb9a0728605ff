"""A problem or a warning of a health report."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem or warning, with a stable ``code``, a description, and a hint about the fix."""

    code: str
    text: str
    hint: str
