"""The elements and the tones of all charts.

Charts are fluid: horizontal positions are percentages of the plot, vertical ones are pixels. Text
therefore keeps its size at each width of the page. A chart without text scales by its ``viewBox``.

A tone is a colour and a shape that several statuses of a run share, so that the colour is never
the only difference.
"""

import re
from enum import StrEnum
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, SubElement, tostring

from celery_dynbeat.common.states import Status

_NAMESPACE = "http://www.w3.org/2000/svg"
# The characters that XML 1.0 does not allow or that UTF-8 cannot encode.
_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINK_SCHEMES = ("", "http", "https")
_HEIGHT = 8


def svg(class_name: str, **attributes: str | float | None) -> Element:
    """Return the root element of a chart."""
    root = Element("svg", {"xmlns": _NAMESPACE, "class": class_name})
    _set(root, attributes)
    return root


def add(parent: Element, tag: str, text: str = "", **attributes: str | float | None) -> Element:
    """Append an element to ``parent`` and return it.

    ``class_`` is the attribute ``class``, ``text_anchor`` is ``text-anchor``. None omits one.
    """
    child = SubElement(parent, tag)
    _set(child, attributes)
    if text:
        child.text = clean(text)
    return child


def add_mark(
    parent: Element,
    class_name: str,
    *,
    title: str,
    href: str | None,
    is_tab_stop: bool = False,
) -> Element:
    """Append the group of one mark: a link if it has a target, with its title for hover.

    A chart has one tab stop. The arrow keys reach its other marks, see ``charts.js``.
    """
    if href is None:
        mark = add(parent, "g", class_=f"dynbeat-mark {class_name}")
    else:
        mark = add(parent, "a", class_=f"dynbeat-mark {class_name}", href=checked_link(href))
        if not is_tab_stop:
            mark.set("tabindex", "-1")
    if title:
        add(mark, "title", title)
    return mark


def checked_link(href: str) -> str:
    """Return ``href``. Raises ValueError if a click on it would not open a page."""
    if urlsplit(clean(href).strip()).scheme not in _LINK_SCHEMES:
        raise ValueError(f"the link {href!r} of a chart is not a path or an http URL")
    return href


def render(root: Element) -> str:
    """Return the text of a chart."""
    return tostring(root, encoding="unicode")


def clean(text: str) -> str:
    """Return ``text`` with a replacement character for each one that XML does not allow."""
    return _INVALID.sub("\N{REPLACEMENT CHARACTER}", text)


def percent(fraction: float) -> str:
    """Return a horizontal position or width: 0 is the left edge of the plot, 1 the right edge."""
    return f"{number(100 * fraction)}%"


def number(value: float) -> str:
    """Return ``value`` with at most three decimals."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _set(element: Element, attributes: dict[str, str | float | None]) -> None:
    for name, value in attributes.items():
        if value is not None:
            shown = clean(value) if isinstance(value, str) else number(value)
            element.set(name.rstrip("_").replace("_", "-"), shown)


class Tone(StrEnum):
    """The appearances of a run. The style sheet has a class for each."""

    SUCCESS = "success"
    FAILURE = "failure"
    ACTIVE = "active"
    WAITING = "waiting"
    INACTIVE = "inactive"


_TONES = {
    Status.PENDING: Tone.WAITING,
    Status.SENT: Tone.WAITING,
    Status.RUNNING: Tone.ACTIVE,
    Status.RETRYING: Tone.ACTIVE,
    Status.SUCCEEDED: Tone.SUCCESS,
    Status.FAILED: Tone.FAILURE,
    Status.LOST: Tone.FAILURE,
    Status.REVOKED: Tone.INACTIVE,
    Status.EXPIRED: Tone.INACTIVE,
    Status.SKIPPED: Tone.INACTIVE,
}


def tone_of(status: str) -> Tone:
    """Return the tone of a run with ``status``."""
    return _TONES[Status(status)]


def tone_class(tone: Tone) -> str:
    """Return the class that colours a mark."""
    return f"dynbeat-tone-{tone}"


def share(*, start: float, share: float, label: str) -> str:
    """Return a bar from ``start`` that is ``share`` long, both fractions of the width."""
    root = svg("dynbeat-share", role="img", aria_label=label, width="100%", height=_HEIGHT)
    add(root, "rect", class_="dynbeat-share-whole", width="100%", height=_HEIGHT, rx=2)
    # One that is too short to see is still a line.
    add(root, "rect", class_="dynbeat-share-part", x=percent(start), y=0, height=_HEIGHT, rx=1)
    root[-1].set("width", percent(max(share, 0.004)))
    return render(root)
