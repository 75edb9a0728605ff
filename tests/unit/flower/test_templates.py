"""Our templates come first, then those of Flower, changed where they name our pages."""

from pathlib import Path

import pytest
from flower.urls import settings

from celery_dynbeat.flower.templates import FOLDER, DynbeatLoader, show

FLOWER = Path(settings["template_path"])


@pytest.fixture
def loader():
    return DynbeatLoader(str(FLOWER))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.html")), ids=lambda path: path.name)
def test_each_template_of_ours_compiles(loader, path):
    assert loader.load(path.name).autoescape == "show"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.html")), ids=lambda path: path.name)
def test_a_template_has_no_inline_script_style_or_handler(path):
    text = path.read_text()

    assert "<style" not in text
    assert " style=" not in text
    assert " onclick=" not in text
    assert "javascript:" not in text
    for script in text.split("<script")[1:]:
        assert script.lstrip().startswith("src=")


@pytest.mark.parametrize("path", sorted(FLOWER.glob("*.html")), ids=lambda path: path.name)
def test_a_template_of_flower_keeps_its_escapes(loader, path):
    assert loader.load(f"flower:{path.name}").autoescape == "xhtml_escape"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("<b>", "&lt;b&gt;"),
        (b"<i>", "&lt;i&gt;"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb", "a\\nb"),
        ("서울 🙂", "서울 🙂"),
        ("=1+1", "=1+1"),
    ],
)
def test_a_value_is_shown_as_text(value, shown):
    assert show(value) == shown
