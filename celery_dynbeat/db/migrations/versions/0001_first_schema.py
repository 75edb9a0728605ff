"""Create the first schema: schedules, runs, nodes.

Revision: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

from celery_dynbeat.db.functions import utc_now
from celery_dynbeat.db.types import ExactText, RunId, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
TAGS = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
EMPTY_LIST = sa.text("('[]')")
EMPTY_OBJECT = sa.text("('{}')")


def upgrade() -> None:
    op.create_table(
        "dynbeat_node",
        sa.Column("kind", ExactText(16), nullable=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("stopped_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("kind IN ('beat', 'worker')", name=op.f("ck_dynbeat_node_kind_known")),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_dynbeat_node")),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )
    op.create_table(
        "dynbeat_schedule",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("owner", ExactText(255), server_default="", nullable=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("task", ExactText(255), nullable=False),
        sa.Column("args", sa.JSON(), server_default=EMPTY_LIST, nullable=False),
        sa.Column("kwargs", sa.JSON(), server_default=EMPTY_OBJECT, nullable=False),
        sa.Column("options", sa.JSON(), server_default=EMPTY_OBJECT, nullable=False),
        sa.Column("trigger_kind", ExactText(32), nullable=False),
        sa.Column("trigger_spec", sa.Text(), nullable=False),
        sa.Column("timezone", ExactText(64), server_default="UTC", nullable=False),
        sa.Column("anchor_at", UtcDateTime(), nullable=True),
        sa.Column("enabled", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("paused_reason", sa.Text(), nullable=True),
        sa.Column("start_at", UtcDateTime(), nullable=True),
        sa.Column("end_at", UtcDateTime(), nullable=True),
        sa.Column("max_runs", sa.Integer(), nullable=True),
        sa.Column("run_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("catch_up", ExactText(16), nullable=True),
        sa.Column("catch_up_window", sa.Double(), nullable=True),
        sa.Column("expires_after", sa.Double(), nullable=True),
        sa.Column("next_fire_at", UtcDateTime(), nullable=True),
        sa.Column("next_run_at", UtcDateTime(), nullable=True),
        sa.Column("last_run_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("error", LONG_TEXT, nullable=True),
        sa.Column("description", ExactText(1024), server_default="", nullable=False),
        sa.Column("tags", TAGS, server_default=EMPTY_LIST, nullable=False),
        sa.Column("managed_by", ExactText(16), server_default="", nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.CheckConstraint(
            "catch_up IN ('latest', 'all', 'none')", name=op.f("ck_dynbeat_schedule_catch_up_known")
        ),
        sa.CheckConstraint("name <> ''", name=op.f("ck_dynbeat_schedule_name_given")),
        sa.CheckConstraint("task <> ''", name=op.f("ck_dynbeat_schedule_task_given")),
        sa.CheckConstraint(
            "catch_up_window IS NULL OR catch_up_window > 0",
            name=op.f("ck_dynbeat_schedule_window_positive"),
        ),
        sa.CheckConstraint(
            "expires_after IS NULL OR expires_after > 0",
            name=op.f("ck_dynbeat_schedule_expiry_positive"),
        ),
        sa.CheckConstraint("json_valid(args)", name=op.f("ck_dynbeat_schedule_args_json")).ddl_if(
            dialect="sqlite"
        ),
        sa.CheckConstraint(
            "json_valid(kwargs)", name=op.f("ck_dynbeat_schedule_kwargs_json")
        ).ddl_if(dialect="sqlite"),
        sa.CheckConstraint(
            "json_valid(options)", name=op.f("ck_dynbeat_schedule_options_json")
        ).ddl_if(dialect="sqlite"),
        sa.CheckConstraint("json_valid(tags)", name=op.f("ck_dynbeat_schedule_tags_json")).ddl_if(
            dialect="sqlite"
        ),
        sa.CheckConstraint(
            "max_runs IS NULL OR max_runs > 0", name=op.f("ck_dynbeat_schedule_max_runs_positive")
        ),
        sa.CheckConstraint(
            "next_run_at IS NULL OR (enabled AND finished_at IS NULL AND error IS NULL)",
            name=op.f("ck_dynbeat_schedule_next_run_only_when_live"),
        ),
        sa.CheckConstraint("run_count >= 0", name=op.f("ck_dynbeat_schedule_run_count_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_schedule")),
        sa.UniqueConstraint("owner", "name", name=op.f("uq_dynbeat_schedule_owner_name")),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )
    op.create_index(
        "ix_dynbeat_schedule_due",
        "dynbeat_schedule",
        ["next_run_at", "id"],
        unique=False,
        postgresql_where=sa.text("next_run_at IS NOT NULL"),
        sqlite_where=sa.text("next_run_at IS NOT NULL"),
    )
    op.create_index(
        "ix_dynbeat_schedule_unplanned",
        "dynbeat_schedule",
        ["enabled", "finished_at", "next_run_at"],
        unique=False,
        postgresql_where=sa.text(
            "enabled AND next_run_at IS NULL AND finished_at IS NULL AND error IS NULL"
        ),
        sqlite_where=sa.text(
            "enabled = 1 AND next_run_at IS NULL AND finished_at IS NULL AND error IS NULL"
        ),
    )
    op.create_table(
        "dynbeat_run",
        sa.Column("id", RunId(length=36), nullable=False),
        sa.Column("schedule_id", BIG_ID, nullable=True),
        sa.Column("owner", ExactText(255), nullable=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("task", ExactText(255), nullable=False),
        sa.Column("scheduled_for", UtcDateTime(), nullable=False),
        sa.Column("fire_count", sa.Integer(), server_default="1", nullable=False),
        sa.Column("status", ExactText(16), nullable=False),
        sa.Column("origin", ExactText(16), server_default="schedule", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("overdue_at", UtcDateTime(), nullable=True),
        sa.Column("sent_at", UtcDateTime(), nullable=True),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("worker", ExactText(255), nullable=True),
        sa.Column("worker_pid", sa.Integer(), nullable=True),
        sa.Column("error", LONG_TEXT, nullable=True),
        sa.Column("traceback", LONG_TEXT, nullable=True),
        sa.CheckConstraint(
            "origin IN ('schedule', 'manual', 'backfill')", name=op.f("ck_dynbeat_run_origin_known")
        ),
        sa.CheckConstraint(
            "overdue_at IS NULL OR status IN ('pending', 'sent')",
            name=op.f("ck_dynbeat_run_overdue_only_unstarted"),
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'sent', 'running', 'retrying', 'succeeded', 'failed',"
            " 'revoked', 'expired', 'lost', 'skipped')",
            name=op.f("ck_dynbeat_run_status_known"),
        ),
        sa.CheckConstraint("fire_count > 0", name=op.f("ck_dynbeat_run_fire_count_positive")),
        sa.ForeignKeyConstraint(
            ["schedule_id"],
            ["dynbeat_schedule.id"],
            name=op.f("fk_dynbeat_run_schedule_id"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_run")),
        sa.UniqueConstraint(
            "schedule_id", "scheduled_for", name=op.f("uq_dynbeat_run_schedule_id_scheduled_for")
        ),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )
    op.create_index(
        "ix_dynbeat_run_overdue",
        "dynbeat_run",
        ["overdue_at"],
        unique=False,
        postgresql_where=sa.text("overdue_at IS NOT NULL"),
        sqlite_where=sa.text("overdue_at IS NOT NULL"),
    )
    op.create_index(
        "ix_dynbeat_run_owner_scheduled_for",
        "dynbeat_run",
        ["owner", "scheduled_for"],
        unique=False,
    )


def downgrade() -> None:
    op.drop_table("dynbeat_run")
    op.drop_table("dynbeat_schedule")
    op.drop_table("dynbeat_node")
