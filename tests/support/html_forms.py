"""Read the form of a page as a browser does, and what the browser would send."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser

#: The types of inputs that a browser sends only if they are checked.
_CHECKABLE = {"checkbox", "radio"}


@dataclass
class HtmlForm:
    """The fields of a form with their values, in their order, and the texts of errors by field."""

    action: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, str]:
        """The last value of each field."""
        return dict(self.fields)

    def sent(self, **changes: str | Sequence[str]) -> Mapping[str, str | Sequence[str]]:
        """Return what a browser sends after ``changes`` of fields."""
        sent: dict[str, str | Sequence[str]] = {}
        for name, value in self.fields:
            before = sent.get(name)
            sent[name] = value if before is None else [*_many(before), value]
        return {**sent, **changes}


def form_of(html: str, *, form_id: str) -> HtmlForm:
    """Return the form with this id. Raises AssertionError if the page has none."""
    parser = _FormParser(form_id)
    parser.feed(html)
    parser.close()
    assert parser.found, f"no form {form_id!r}"
    return parser.form


def _many(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


@dataclass
class _Option:
    is_selected: bool
    #: None until the end tag: the text is the value.
    value: str | None


class _FormParser(HTMLParser):
    def __init__(self, form_id: str) -> None:
        super().__init__(convert_charrefs=True)
        self.form = HtmlForm()
        self.found = False
        self._id = form_id
        self._inside = False
        self._select: str | None = None
        self._options: list[_Option] = []
        self._text: list[str] | None = None
        self._name = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._inside = given.get("id") == self._id
            if self._inside:
                self.found, self.form.action = True, given["action"]
        elif not self._inside:
            return
        elif tag == "input":
            self._input(given)
        elif tag == "textarea":
            self._name, self._text = given["name"], []
        elif tag == "select":
            self._select, self._options = given["name"], []
        elif tag == "option" and self._select is not None:
            self._text = []
            self._options.append(_Option("selected" in given, given.get("value")))
        elif "data-error" in given:
            self._name, self._text = given["data-error"], []

    def _input(self, given: Mapping[str, str]) -> None:
        if given.get("type") in _CHECKABLE and "checked" not in given:
            return
        value = given.get("value", "").replace("\r", "").replace("\n", "")
        self.form.fields.append((given["name"], value))

    def handle_endtag(self, tag: str) -> None:
        text = "".join(self._text or ())
        if tag in {"textarea", "option", "p"} and self._text is not None:
            self._end_of_text(tag, text)
            self._text = None
        elif tag == "form":
            self._inside = False
        elif tag == "select" and self._select is not None:
            chosen = next((each for each in self._options if each.is_selected), self._options[0])
            self.form.fields.append((self._select, chosen.value or ""))
            self._select = None

    def _end_of_text(self, tag: str, text: str) -> None:
        if tag == "textarea":
            # A browser drops the first line break, and sends CRLF.
            value = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")
            self.form.fields.append((self._name, value.replace("\n", "\r\n")))
        elif tag == "option":
            option = self._options[-1]
            option.value = text if option.value is None else option.value
        elif text.strip():
            self.form.errors[self._name] = text.strip()

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)
