"""Texts of end users, made safe to show.

A control character could rewrite the operator's terminal, and one that reverses the direction of
text could make a name look like another one.
"""

import unicodedata

#: Control characters, lone surrogates, line and paragraph separators, and invisible characters
#: such as those that reverse the direction of the text.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: They join the parts of an emoji, and letters of Persian and of Indian scripts.
_JOINERS = frozenset("\u200c\u200d")
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escape(text: str) -> str:
    """Return ``text`` on one line, with escapes for control and direction characters."""
    if text.isprintable():
        return text
    return "".join(_escape_one(character) for character in text)


def _escape_one(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if character in _NAMED:
        return _NAMED[character]
    if unicodedata.category(character) not in _UNSAFE:
        return character
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - two hexadecimal digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004
