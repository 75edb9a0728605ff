"""Index a schedule's newest unfinished runs and newest backfills in the order of the queries.

Revision: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

IS_UNFINISHED = sa.text("finished_at IS NULL")


def upgrade() -> None:
    # Create each index before dropping the old one. For a drop, PostgreSQL locks the table against
    # readers until the end of the transaction. MySQL's foreign key needs an index at all times.
    op.create_index(
        "ix_dynbeat_run_newest_unfinished",
        "dynbeat_run",
        ["finished_at", "schedule_id", "id"],
        unique=False,
        postgresql_where=IS_UNFINISHED,
        sqlite_where=IS_UNFINISHED,
    )
    op.create_index("ix_dynbeat_backfill_newest", "dynbeat_backfill", ["schedule_id", "id"])
    op.drop_index("ix_dynbeat_run_unfinished", "dynbeat_run")
    op.drop_index("ix_dynbeat_backfill_schedule_id", "dynbeat_backfill")


def downgrade() -> None:
    op.create_index("ix_dynbeat_backfill_schedule_id", "dynbeat_backfill", ["schedule_id"])
    op.create_index(
        "ix_dynbeat_run_unfinished",
        "dynbeat_run",
        ["finished_at", "schedule_id"],
        unique=False,
        postgresql_where=IS_UNFINISHED,
        sqlite_where=IS_UNFINISHED,
    )
    op.drop_index("ix_dynbeat_backfill_newest", "dynbeat_backfill")
    op.drop_index("ix_dynbeat_run_newest_unfinished", "dynbeat_run")
