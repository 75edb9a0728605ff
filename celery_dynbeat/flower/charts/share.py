"""A part of a whole, as a bar in its place."""

from celery_dynbeat.flower.charts.svg import add, percent, render, svg

_HEIGHT = 8


def share(*, start: float, share: float, label: str) -> str:
    """Return a bar from ``start`` that is ``share`` long, both fractions of the width."""
    root = svg("dynbeat-share", role="img", aria_label=label, width="100%", height=_HEIGHT)
    add(root, "rect", class_="dynbeat-share-whole", width="100%", height=_HEIGHT, rx=2)
    # One that is too short to see is still a line.
    add(root, "rect", class_="dynbeat-share-part", x=percent(start), y=0, height=_HEIGHT, rx=1)
    root[-1].set("width", percent(max(share, 0.004)))
    return render(root)
