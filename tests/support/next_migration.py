"""The migration of an imaginary next version, and the tables before and after it.

It does what a migration may do while an older version runs: it adds a column with a default, an
index and a table. It is the second revision of a copy of the package's migrations.
"""

import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from celery_dynbeat.db import alembic_upgrade, schema
from celery_dynbeat.db.engine import Database

SOURCE = '''
"""Add the colour of a schedule, its index, and the colours."""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import ExactText

revision, down_revision = "{revision}", "{previous}"


def upgrade() -> None:
    op.create_table("dynbeat_colour", sa.Column("name", ExactText(16), primary_key=True))
    colour = sa.Column("colour", ExactText(16), server_default="100% red", nullable=False)
    op.add_column("dynbeat_schedule", colour)
    where = sa.text("colour <> ''")
    op.create_index(
        "ix_dynbeat_schedule_colour",
        "dynbeat_schedule",
        ["colour", "id"],
        postgresql_where=where,
        sqlite_where=where,
    )


def downgrade() -> None:
    op.drop_index("ix_dynbeat_schedule_colour", "dynbeat_schedule")
    op.drop_column("dynbeat_schedule", "colour")
    op.drop_table("dynbeat_colour")
'''


@pytest.fixture
def next_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Let the package have one more migration, and return its revision."""
    previous = schema.head()
    revision = f"{int(previous) + 1:04}"
    folder = tmp_path / "migrations"
    with resources.as_file(resources.files("celery_dynbeat.db.migrations")) as migrations:
        shutil.copytree(migrations, folder, ignore=shutil.ignore_patterns("__pycache__"))
    source = SOURCE.format(revision=revision, previous=previous)
    (folder / "versions" / f"{revision}_colours.py").write_text(source)

    def configuration() -> Config:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        return config

    known = [*schema._revisions(), revision]
    monkeypatch.setattr(alembic_upgrade, "configuration", configuration)
    monkeypatch.setattr(schema, "_revisions", lambda: known)
    schema.head.cache_clear()
    yield revision
    schema.head.cache_clear()


def upgrade_to(database: Database, revision: str) -> None:
    """Migrate the tables to ``revision``, which may be older than the newest."""
    with database.engine.begin() as connection:
        alembic_upgrade.migrate(connection, revision)


def downgrade_to(database: Database, revision: str) -> None:
    """Undo the migrations after ``revision``."""
    with database.engine.begin() as connection:
        config = alembic_upgrade.configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
