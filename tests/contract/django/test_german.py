"""Django's part of the package is complete in German."""

import ast
import re
from gettext import GNUTranslations
from pathlib import Path

import celery_dynbeat
from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.common.errors import MESSAGES
from celery_dynbeat.common.states import Action, State, Status

PACKAGE = Path(celery_dynbeat.__file__).parent / "django"
CATALOGUE = PACKAGE / "locale" / "de" / "LC_MESSAGES"
VALUE = re.compile(r"%d|{\w+}")
FUNCTIONS = {"_", "gettext", "gettext_lazy", "ngettext"}


def texts_of_code():
    """Yield the keys. A plural is not one."""
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in FUNCTIONS:
                yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))


def texts_of_templates():
    for path in PACKAGE.glob("templates/**/*.html"):
        yield from re.findall(r"{% translate \"([^\"]+)\" %}", path.read_text())


def texts_of_tables():
    fields = [(field.label, field.help, field.unset) for field in FIELDS.values()]
    words = [str(word) for kind in (State, Status, Action) for word in kind]
    return {*MESSAGES.values(), *words, *(text for each in fields for text in each)}


def compiled():
    with (CATALOGUE / "django.mo").open("rb") as file:
        return vars(GNUTranslations(file))["_catalog"]


def test_each_text_has_a_translation_with_the_same_values():
    catalogue = compiled()
    # The key of a plural is a pair.
    found = {key[0] if isinstance(key, tuple) else key: text for key, text in catalogue.items()}

    assert found.keys() - {""} == {*texts_of_code(), *texts_of_templates(), *texts_of_tables()}
    for key, text in found.items():
        assert text
        assert not key or VALUE.findall(key) == VALUE.findall(text)


def test_the_compiled_catalogue_is_that_of_the_source():
    source = (CATALOGUE / "django.po").read_text()
    texts = {
        ast.literal_eval(text) for text in re.findall(r"^msgstr\S* (.+)$", source, re.MULTILINE)
    }
    header = {compiled()[""], *(text for text in texts if text.startswith("Content-Type"))}
    assert texts - header == {*compiled().values()} - header
