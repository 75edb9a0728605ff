"""One row of the table of fields puts a field on each surface."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import celery_dynbeat

ROOT = Path(__file__).parents[3]
PACKAGE = Path(celery_dynbeat.__file__).parent
#: File -> the line after which a new field has its own. The table decides what all else shows.
TOY = {
    "db/models.py": (
        "    finish_within: Mapped[float | None] = mapped_column(Double)\n",
        "    toy: Mapped[float | None] = mapped_column(Double)\n",
    ),
    "db/migrations/versions/0001_first_schema.py": (
        'DURATIONS = ("catch_up_window", "expires_after", "finish_within", "max_run_time")\n',
        'DURATIONS += ("toy",)\n',
    ),
    "api/results.py": (
        "    finish_within: timedelta | None\n",
        "    toy: timedelta | None\n",
    ),
    "api/fields.py": (
        "    for field in (\n",
        '        Field("toy", Duration(), "A sentence."),\n',
    ),
}


@pytest.fixture
def surfaces(tmp_path):
    """Return a function that searches for a field in a copy of the package, edited by ``edit``."""

    def search(name, edit):
        shutil.copytree(
            PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__")
        )
        edit(tmp_path / PACKAGE.name)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.support.field_surfaces"),
                *(name, str(tmp_path / "toy.db"), str(ROOT / "docs")),
            ],
            cwd=tmp_path,
            env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return search


def add_toy(package):
    for path, (line, added) in TOY.items():
        file = package / path
        text = file.read_text()
        assert text.count(line) == 1
        file.write_text(text.replace(line, line + added))


def delete_finish_within(package):
    file = package / "api/fields.py"
    before, row, after = file.read_text().partition('            "finish_within",\n')
    assert row
    start, end = before.rindex("        Field("), after.index("        Field(")
    file.write_text(before[:start] + after[end:])


def test_a_row_of_the_table_puts_a_field_on_each_surface(surfaces):
    found = surfaces("toy", add_toy)

    assert {name for name, is_found in found.items() if not is_found} == set()
    assert len(found) == 14


def test_without_its_row_a_field_is_on_no_surface(surfaces):
    found = surfaces("finish_within", delete_finish_within)

    assert {name for name, is_found in found.items() if is_found} == set()
