"""Read the elements of a chart from its text."""

from xml.etree.ElementTree import Element, fromstring


def parse(chart: str) -> Element:
    """Return the root element, without the namespace in the names of tags."""
    root = fromstring(chart)  # noqa: S314 - the text that our own function has just returned
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def with_class(root: Element, name: str) -> list[Element]:
    """Return the elements of the class ``name``, in the order of the document."""
    return [element for element in root.iter() if name in (element.get("class") or "").split()]


def length(element: Element, name: str) -> float:
    """Return an attribute as a number: pixels, or the fraction that a percentage means."""
    text = element.get(name) or "0"
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)
