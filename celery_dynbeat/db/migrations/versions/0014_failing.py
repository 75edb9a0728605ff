"""Add since when the runs of a schedule fail, and the indexes of lists by state and by name.

Revision: 0014
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import MYSQL, UtcDateTime

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

STATES = {
    "paused": "NOT enabled",
    "finished": "finished_at IS NOT NULL",
    "quarantined": "error IS NOT NULL",
    "failing": "failing_since IS NOT NULL",
}


def upgrade() -> None:
    op.add_column("dynbeat_schedule", sa.Column("failing_since", UtcDateTime(), nullable=True))
    dialect = op.get_context().dialect.name
    if dialect in MYSQL:
        _create("failing", ["failing_since"])
        _create("quarantined", ["error"], mysql_length=1, mariadb_length=1)
    else:
        for state, condition in STATES.items():
            where = sa.text(
                "enabled = 0" if (dialect, state) == ("sqlite", "paused") else condition
            )
            _create(state, ["owner", "name"], postgresql_where=where, sqlite_where=where)
    _create("name", [sa.text('name COLLATE "C"') if dialect == "postgresql" else "name", "owner"])
    if dialect == "postgresql":
        op.create_index(
            "ix_dynbeat_run_failed",
            "dynbeat_run",
            ["id"],
            unique=False,
            postgresql_where=sa.text("status IN ('failed', 'lost')"),
        )


def _create(name: str, columns: list[Any], **options: Any) -> None:
    index = f"ix_dynbeat_schedule_{name}"
    op.create_index(index, "dynbeat_schedule", columns, unique=False, **options)


def downgrade() -> None:
    dialect = op.get_context().dialect.name
    if dialect == "postgresql":
        op.drop_index("ix_dynbeat_run_failed", "dynbeat_run")
    names = ("failing", "quarantined") if dialect in MYSQL else tuple(STATES)
    for name in (*names, "name"):
        op.drop_index(f"ix_dynbeat_schedule_{name}", "dynbeat_schedule")
    op.drop_column("dynbeat_schedule", "failing_since")
