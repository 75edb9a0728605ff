"""The pages about switching have the present text of the parts that they share."""

import runpy
from pathlib import Path

import click
import pytest

from celery_dynbeat.cli import dynbeat

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "generate_switch_pages.py"))
PAGES = SCRIPT["PAGES"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_page_is_written_by_make_docs(path):
    assert path.read_text() == SCRIPT["page"](path), "run `make docs`"


def test_each_part_is_on_several_pages():
    texts = [path.read_text() for path in PAGES]

    for part in SCRIPT["PARTS"]:
        assert sum(f"<!-- shared: {part} -->" in text for text in texts) > 1
    for row in SCRIPT["ROWS"].values():
        assert sum(row in text for text in texts) > 1


def test_dynbeat_import_takes_the_name_of_each_page():
    context = click.Context(dynbeat)
    command = dynbeat.get_command(context, "import")

    assert command is not None
    package = command.params[0].type
    assert isinstance(package, click.Choice)
    assert set(PAGES.values()) <= set(package.choices)
