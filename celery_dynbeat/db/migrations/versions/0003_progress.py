"""Add the due time of a retry, and the progress of a node.

Revision: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from celery_dynbeat.db.types import UtcDateTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dynbeat_run", sa.Column("retry_at", UtcDateTime(), nullable=True))
    op.create_index(
        "ix_dynbeat_run_retry_at",
        "dynbeat_run",
        ["retry_at"],
        unique=False,
        postgresql_where=sa.text("retry_at IS NOT NULL"),
        sqlite_where=sa.text("retry_at IS NOT NULL"),
    )
    op.add_column("dynbeat_node", sa.Column("progressed_at", UtcDateTime(), nullable=True))
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.add_column("dynbeat_node", sa.Column("error", text, nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_node", "error")
    op.drop_column("dynbeat_node", "progressed_at")
    op.drop_index("ix_dynbeat_run_retry_at", "dynbeat_run")
    op.drop_column("dynbeat_run", "retry_at")
