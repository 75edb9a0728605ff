"""The meanings of the shapes in a timeline."""

from xml.etree.ElementTree import Element

from celery_dynbeat.flower.charts.svg import add, render, svg
from celery_dynbeat.flower.charts.timeline import add_run_shape, add_tick_shape
from celery_dynbeat.flower.charts.tones import Tone, tone_class

_MEANINGS = {
    Tone.SUCCESS: "succeeded",
    Tone.FAILURE: "failed or lost",
    Tone.ACTIVE: "running or retrying",
    Tone.WAITING: "pending or sent",
    Tone.INACTIVE: "skipped, revoked or expired",
}
_WIDTH, _HEIGHT = 18, 20


def timeline_legend() -> str:
    """Return a list of the shapes of a timeline with their meanings."""
    legend = Element("ul", {"class": "dynbeat-legend"})
    for tone, meaning in _MEANINGS.items():
        key = _add_item(legend, f"dynbeat-bar {tone_class(tone)}", meaning)
        x = 0.5 if tone is Tone.WAITING else 0.25
        add_run_shape(key, tone, x=x, width=0.5, y=6, height=_HEIGHT - 6)
    add_tick_shape(_add_item(legend, "dynbeat-fire-time", "planned"), x=0.5)
    return render(legend)


def _add_item(legend: Element, class_name: str, meaning: str) -> Element:
    item = add(legend, "li")
    drawing = svg("dynbeat-key-shape", aria_hidden="true", width=_WIDTH, height=_HEIGHT)
    item.append(drawing)
    add(item, "span", meaning)
    return add(drawing, "g", class_=class_name)
