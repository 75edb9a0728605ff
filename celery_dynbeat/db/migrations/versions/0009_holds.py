"""Add holds, and the instant at which beat found a schedule held.

Revision: 0009
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.functions import utc_now
from celery_dynbeat.db.types import ExactText, UtcDateTime

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "dynbeat_hold",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("owner", ExactText(255), nullable=True),
        sa.Column("actor", ExactText(255), server_default="", nullable=False),
        sa.Column("reason", ExactText(1024), server_default="", nullable=False),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("until_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_hold")),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )
    op.create_index("ix_dynbeat_hold_owner", "dynbeat_hold", ["owner"], unique=False)
    op.create_index(
        "ix_dynbeat_hold_until_at",
        "dynbeat_hold",
        ["until_at"],
        unique=False,
        postgresql_where=sa.text("until_at IS NOT NULL"),
        sqlite_where=sa.text("until_at IS NOT NULL"),
    )
    op.add_column("dynbeat_schedule", sa.Column("held_at", UtcDateTime(), nullable=True))
    op.create_index(
        "ix_dynbeat_schedule_held_at",
        "dynbeat_schedule",
        ["held_at", "id"],
        unique=False,
        postgresql_where=sa.text("held_at IS NOT NULL"),
        sqlite_where=sa.text("held_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_dynbeat_schedule_held_at", table_name="dynbeat_schedule")
    op.drop_column("dynbeat_schedule", "held_at")
    op.drop_table("dynbeat_hold")
