"""Text of error messages."""

from collections.abc import Iterator

#: The characters of a value that an error message shows: one line of a terminal.
_SHOWN = 80


def shorten(value: object) -> str:
    """Quote a value for an error message, cut so that hostile input stays readable and cheap."""
    text = ""
    try:
        for piece in _pieces(value):
            text += piece
            if len(text) > _SHOWN:
                break
    # An integer of more digits than Python is willing to print, or a __repr__ with a flaw.
    except Exception:  # noqa: BLE001
        text = f"of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _pieces(value: object) -> Iterator[str]:
    """Yield the repr of ``value`` bit by bit: nobody waits for the end of what is large or deep."""
    if isinstance(value, (str, bytes, bytearray)):
        yield repr(value[: _SHOWN + 1])
    elif isinstance(value, dict):
        yield "{"
        for number, (key, inner) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key)
            yield ": "
            yield from _pieces(inner)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "[" if isinstance(value, list) else "("
        for number, inner in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(inner)
        yield "]" if isinstance(value, list) else ")"
    else:
        yield repr(value)
