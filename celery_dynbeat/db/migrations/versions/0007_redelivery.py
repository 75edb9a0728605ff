"""Add the attempt of a redelivery, and an index of a worker's unfinished runs.

Revision: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_UNFINISHED = sa.text("worker IS NOT NULL AND finished_at IS NULL")


def upgrade() -> None:
    op.add_column("dynbeat_run", sa.Column("redelivered_attempt", sa.Integer(), nullable=True))
    op.create_index(
        "ix_dynbeat_run_worker",
        "dynbeat_run",
        ["worker", "finished_at"],
        unique=False,
        postgresql_where=_UNFINISHED,
        sqlite_where=_UNFINISHED,
    )


def downgrade() -> None:
    op.drop_index("ix_dynbeat_run_worker", "dynbeat_run")
    op.drop_column("dynbeat_run", "redelivered_attempt")
