"""Texts for a stdout that does not encode every character."""

import sys


def encodable(text: str) -> str:
    """Return ``text`` with escapes for characters that the encoding of stdout does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
