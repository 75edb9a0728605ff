"""Add the policies of a schedule, cancelled runs, backfills, and the lock row of an owner.

Revision: 0002

On SQLite each constraint is added with its column. SQLite cannot add a constraint to a table
without a rebuild, and a rebuild would delete the links from the history to its schedules.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

from celery_dynbeat.db.functions import utc_now
from celery_dynbeat.db.types import ExactText, UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COLUMNS: tuple[tuple[str, TypeEngine[Any], str, str], ...] = (
    ("jitter", sa.Double(), "jitter_positive", "jitter IS NULL OR jitter >= 0"),
    (
        "max_run_time",
        sa.Double(),
        "run_time_positive",
        "max_run_time IS NULL OR max_run_time > 0",
    ),
    (
        "overlap",
        ExactText(16),
        "overlap_known",
        "overlap IN ('allow', 'skip', 'buffer_one', 'cancel_previous')",
    ),
    ("on_lost", ExactText(16), "on_lost_known", "on_lost IN ('record', 'rerun')"),
    (
        "pause_after_failures",
        sa.Integer(),
        "failures_positive",
        "pause_after_failures IS NULL OR pause_after_failures >= 0",
    ),
)


def upgrade() -> None:
    # Before any ALTER: PostgreSQL keeps the lock of an altered table, also against readers, until
    # the end of the transaction, and building the index of a long history takes time.
    op.create_index(
        "ix_dynbeat_run_unfinished",
        "dynbeat_run",
        ["finished_at", "schedule_id"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NULL"),
        sqlite_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "dynbeat_owner",
        sa.Column("owner", ExactText(255), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_dynbeat_owner")),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )
    _create_backfill()
    _add_policies()
    op.add_column("dynbeat_run", sa.Column("cancelled_at", UtcDateTime(), nullable=True))


def _add_policies() -> None:
    dialect = op.get_context().dialect
    added = [
        (
            f"ADD COLUMN {name} {kind.compile(dialect=dialect)}",
            f"CONSTRAINT ck_dynbeat_schedule_{rule} CHECK ({condition})",
        )
        for name, kind, rule, condition in COLUMNS
    ]
    if dialect.name == "sqlite":
        for column, constraint in added:
            op.execute(f"ALTER TABLE dynbeat_schedule {column} {constraint}")
        return
    # In one statement: MySQL copies the table for each statement that adds a constraint.
    parts = [*(column for column, _ in added), *(f"ADD {constraint}" for _, constraint in added)]
    op.execute(f"ALTER TABLE dynbeat_schedule {', '.join(parts)}")


def _create_backfill() -> None:
    op.create_table(
        "dynbeat_backfill",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("schedule_id", BIG_ID, nullable=False),
        sa.Column("start_at", UtcDateTime(), nullable=False),
        sa.Column("end_at", UtcDateTime(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("made", sa.Integer(), server_default="0", nullable=False),
        sa.Column("present", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_fire_at", UtcDateTime(), nullable=True),
        sa.Column("next_run_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("cancelled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.CheckConstraint("batch_size > 0", name=op.f("ck_dynbeat_backfill_batch_size_positive")),
        sa.CheckConstraint("start_at <= end_at", name=op.f("ck_dynbeat_backfill_span_ordered")),
        sa.ForeignKeyConstraint(
            ["schedule_id"],
            ["dynbeat_schedule.id"],
            name=op.f("fk_dynbeat_backfill_schedule_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_backfill")),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )
    op.create_index(
        "ix_dynbeat_backfill_schedule_id", "dynbeat_backfill", ["schedule_id"], unique=False
    )
    op.create_index(
        "ix_dynbeat_backfill_next_run_at",
        "dynbeat_backfill",
        ["next_run_at"],
        unique=False,
        postgresql_where=sa.text("next_run_at IS NOT NULL"),
        sqlite_where=sa.text("next_run_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("dynbeat_owner")
    op.drop_table("dynbeat_backfill")
    op.drop_column("dynbeat_run", "cancelled_at")
    op.drop_index("ix_dynbeat_run_unfinished", "dynbeat_run")
    for name, _, rule, _ in reversed(COLUMNS):
        if op.get_context().dialect.name != "sqlite":
            op.drop_constraint(
                op.f(f"ck_dynbeat_schedule_{rule}"), "dynbeat_schedule", type_="check"
            )
        op.drop_column("dynbeat_schedule", name)
