"""Create the tables.

Revision: 0001
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.type_checks import type_checks
from celery_dynbeat.db.types import (
    ExactText,
    Json,
    LongText,
    RunId,
    RunInstant,
    UtcDateTime,
    Window,
    utc_now,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
EMPTY_LIST = sa.text("('[]')")
EMPTY_OBJECT = sa.text("('{}')")
DURATIONS = ("catch_up_window", "expires_after", "finish_within", "max_run_time")
WITH_PARTIAL_INDEXES = ("postgresql", "sqlite")
MYSQL = ("mariadb", "mysql")


def upgrade() -> None:
    _create_schedule()
    _create_run()
    _create_hold()
    _create_change()
    _create_owner()
    _create_application()
    _create_node()
    _create_alert()
    _create_lock()
    _create_rollup()
    _create_calendar()


def downgrade() -> None:
    for name in (
        "schedule_calendar",
        "calendar",
        "rollup",
        "lock",
        "alert",
        "node",
        "application",
        "owner",
        "change",
        "hold",
        "run",
        "schedule",
    ):
        op.drop_table(f"dynbeat_{name}")


def _create_table(name: str, *items: Any) -> None:
    """Create a table. Constraints without a name get a name by the naming convention."""
    columns = [item for item in items if isinstance(item, sa.Column)]
    checks = [check for each in columns for check in type_checks(each, table=name)]
    op.create_table(name, *items, *checks, mariadb_charset="utf8mb4", mysql_charset="utf8mb4")


def _create_index(
    name: str,
    table: str,
    columns: Sequence[Any],
    *,
    where: str | None = None,
    sqlite_where: str | None = None,
    only_on: Sequence[str] = (),
    **options: Any,
) -> None:
    """Create an index of the rows that match ``where``; MySQL indexes all rows.

    SQLite has no columns of type boolean and gets its own text.
    """
    if only_on and op.get_context().dialect.name not in only_on:
        return
    if where is not None:
        options["postgresql_where"] = sa.text(where)
        options["sqlite_where"] = sa.text(sqlite_where or where)
    op.create_index(name, table, columns, **options)


def _create_schedule() -> None:
    _create_table(
        "dynbeat_schedule",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("owner", ExactText(255), server_default="", nullable=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("task", ExactText(255), nullable=False),
        sa.Column("args", Json("array"), server_default=EMPTY_LIST, nullable=False),
        sa.Column("kwargs", Json("object"), server_default=EMPTY_OBJECT, nullable=False),
        sa.Column("options", Json("object"), server_default=EMPTY_OBJECT, nullable=False),
        sa.Column("trigger_kind", ExactText(32), nullable=False),
        sa.Column("trigger_spec", sa.Text(), nullable=False),
        sa.Column("hash_name", ExactText(255), nullable=True),
        sa.Column("timezone", ExactText(64), server_default="UTC", nullable=False),
        sa.Column("inherits_timezone", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("quiet_hours", sa.Text(), nullable=True),
        sa.Column("anchor_at", UtcDateTime(), nullable=True),
        sa.Column("enabled", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("paused_reason", sa.Text(), nullable=True),
        sa.Column("paused_until", UtcDateTime(), nullable=True),
        sa.Column("start_at", UtcDateTime(), nullable=True),
        sa.Column("end_at", UtcDateTime(), nullable=True),
        sa.Column("max_runs", sa.Integer(), nullable=True),
        sa.Column("run_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("catch_up", ExactText(16), nullable=True),
        sa.Column("catch_up_window", sa.Double(), nullable=True),
        sa.Column("expires_after", sa.Double(), nullable=True),
        sa.Column("finish_within", sa.Double(), nullable=True),
        sa.Column("window", Window(), nullable=True),
        sa.Column("max_run_time", sa.Double(), nullable=True),
        sa.Column("overlap", ExactText(16), nullable=True),
        sa.Column("on_lost", ExactText(16), nullable=True),
        sa.Column("pause_after_failures", sa.Integer(), nullable=True),
        sa.Column("retry", Json("object"), nullable=True),
        sa.Column("next_fire_at", UtcDateTime(), nullable=True),
        sa.Column("next_run_at", UtcDateTime(), nullable=True),
        sa.Column("held_at", UtcDateTime(), nullable=True),
        sa.Column("skips", Json("object"), nullable=True),
        sa.Column("last_run_at", UtcDateTime(), nullable=True),
        sa.Column("failing_since", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("error", LongText(), nullable=True),
        sa.Column("description", ExactText(1024), server_default="", nullable=False),
        sa.Column(
            "tags", Json("array", is_searched=True), server_default=EMPTY_LIST, nullable=False
        ),
        sa.Column("ping_url", sa.Text(), nullable=True),
        sa.Column("managed_by", ExactText(16), server_default="", nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.UniqueConstraint("owner", "name"),
        sa.CheckConstraint("name <> ''", name="name_given"),
        *(
            sa.CheckConstraint(f"{name} >= 0 AND {name} < 1e10", name=f"{name}_in_range")
            for name in DURATIONS
        ),
        sa.CheckConstraint("catch_up IN ('latest', 'all', 'none')", name="catch_up_known"),
        sa.CheckConstraint(
            "overlap IN ('allow', 'skip', 'buffer_one', 'cancel_previous')", name="overlap_known"
        ),
        sa.CheckConstraint("on_lost IN ('record', 'rerun')", name="on_lost_known"),
        sa.CheckConstraint(
            "next_run_at IS NULL OR (enabled AND finished_at IS NULL AND error IS NULL)",
            name="next_run_only_when_live",
        ),
    )
    _create_index(
        "ix_dynbeat_schedule_due",
        "dynbeat_schedule",
        ["next_run_at", "id"],
        where="next_run_at IS NOT NULL",
    )
    _create_index(
        "ix_dynbeat_schedule_failing", "dynbeat_schedule", ["failing_since"], only_on=MYSQL
    )
    _create_index(
        "ix_dynbeat_schedule_failing",
        "dynbeat_schedule",
        ["owner", "name"],
        where="failing_since IS NOT NULL",
        only_on=WITH_PARTIAL_INDEXES,
    )
    _create_index(
        "ix_dynbeat_schedule_finished",
        "dynbeat_schedule",
        ["owner", "name"],
        where="finished_at IS NOT NULL",
        only_on=WITH_PARTIAL_INDEXES,
    )
    _create_index(
        "ix_dynbeat_schedule_held_at",
        "dynbeat_schedule",
        ["held_at", "id"],
        where="held_at IS NOT NULL",
    )
    _create_index(
        "ix_dynbeat_schedule_paused_until",
        "dynbeat_schedule",
        ["paused_until", "id"],
        where="paused_until IS NOT NULL",
    )
    _create_index("ix_dynbeat_schedule_name", "dynbeat_schedule", ["name", "owner"])
    _create_index(
        "ix_dynbeat_schedule_paused",
        "dynbeat_schedule",
        ["owner", "name"],
        where="NOT enabled",
        sqlite_where="enabled = 0",
        only_on=WITH_PARTIAL_INDEXES,
    )
    _create_index(
        "ix_dynbeat_schedule_quarantined",
        "dynbeat_schedule",
        ["error"],
        mysql_length=1,
        only_on=MYSQL,
    )
    _create_index(
        "ix_dynbeat_schedule_quarantined",
        "dynbeat_schedule",
        ["owner", "name"],
        where="error IS NOT NULL",
        only_on=WITH_PARTIAL_INDEXES,
    )
    _create_index(
        "ix_dynbeat_schedule_unplanned",
        "dynbeat_schedule",
        ["enabled", "finished_at", "next_run_at"],
        where="enabled AND next_run_at IS NULL AND finished_at IS NULL AND error IS NULL",
        sqlite_where="enabled = 1 AND next_run_at IS NULL AND finished_at IS NULL AND error IS "
        "NULL",
    )


def _create_run() -> None:
    _create_table(
        "dynbeat_run",
        sa.Column("id", RunId(), primary_key=True),
        sa.Column(
            "schedule_id",
            BIG_ID,
            sa.ForeignKey("dynbeat_schedule.id", ondelete="SET NULL"),
            nullable=True,
        ),
        sa.Column("owner", ExactText(255), nullable=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("task", ExactText(255), nullable=False),
        sa.Column("scheduled_for", RunInstant(), nullable=False),
        sa.Column("fire_count", sa.Integer(), server_default="1", nullable=False),
        sa.Column("status", ExactText(16), nullable=False),
        sa.Column("origin", ExactText(16), server_default="schedule", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("postponements", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", RunInstant(), server_default=utc_now(), nullable=False),
        sa.Column("overdue_at", RunInstant(), nullable=True),
        sa.Column("queue", ExactText(255), nullable=True),
        sa.Column("sent_at", RunInstant(), nullable=True),
        sa.Column("started_at", RunInstant(), nullable=True),
        sa.Column("finished_at", RunInstant(), nullable=True),
        sa.Column("waited_for", ExactText(16), nullable=True),
        sa.Column("ready_at", RunInstant(), nullable=True),
        sa.Column("running_key", ExactText(255), nullable=True),
        sa.Column("ignores_quiet_hours", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("retry_at", RunInstant(), nullable=True),
        sa.Column("cancelled_at", RunInstant(), nullable=True),
        sa.Column("worker", ExactText(255), nullable=True),
        sa.Column("worker_pid", sa.Integer(), nullable=True),
        sa.Column("redelivered_attempt", sa.Integer(), nullable=True),
        sa.Column("batch_id", RunId(), nullable=True),
        sa.Column("rerun_of", RunId(), nullable=True),
        sa.Column("nominal_at", RunInstant(), nullable=True),
        sa.Column("error", LongText(), nullable=True),
        sa.Column("traceback", LongText(), nullable=True),
        sa.Column("earlier_errors", LongText(), nullable=True),
        sa.Column("note", ExactText(500), nullable=True),
        sa.UniqueConstraint("schedule_id", "scheduled_for"),
        sa.CheckConstraint(
            "status IN ('pending', 'sent', 'running', 'retrying', 'succeeded', "
            "'failed', 'revoked', 'expired', 'lost', 'skipped')",
            name="status_known",
        ),
        sa.CheckConstraint(
            "origin IN ('schedule', 'manual', 'backfill', 'rerun')", name="origin_known"
        ),
        sa.CheckConstraint(
            "overdue_at IS NULL OR status IN ('pending', 'sent', 'retrying')",
            name="overdue_only_unstarted",
        ),
    )
    _create_index(
        "ix_dynbeat_run_failed",
        "dynbeat_run",
        ["id"],
        where="status IN ('failed', 'lost')",
        only_on=("postgresql",),
    )
    _create_index(
        "ix_dynbeat_run_finished_at",
        "dynbeat_run",
        ["finished_at"],
        where="finished_at IS NOT NULL",
        only_on=("postgresql", "sqlite"),
    )
    _create_index(
        "ix_dynbeat_run_newest_unfinished",
        "dynbeat_run",
        ["finished_at", "schedule_id", "id"],
        where="finished_at IS NULL",
    )
    _create_index(
        "ix_dynbeat_run_overdue", "dynbeat_run", ["overdue_at"], where="overdue_at IS NOT NULL"
    )
    _create_index("ix_dynbeat_run_owner_scheduled_for", "dynbeat_run", ["owner", "scheduled_for"])
    _create_index(
        "ix_dynbeat_run_place",
        "dynbeat_run",
        ["status", "running_key", "overdue_at", "id"],
        where="running_key IS NOT NULL AND finished_at IS NULL",
    )
    _create_index(
        "ix_dynbeat_run_rerun_of", "dynbeat_run", ["rerun_of"], where="rerun_of IS NOT NULL"
    )
    _create_index(
        "ix_dynbeat_run_retry_at", "dynbeat_run", ["retry_at"], where="retry_at IS NOT NULL"
    )
    _create_index(
        "ix_dynbeat_run_worker",
        "dynbeat_run",
        ["worker", "finished_at"],
        where="worker IS NOT NULL AND finished_at IS NULL",
    )


def _create_hold() -> None:
    _create_table(
        "dynbeat_hold",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("owner", ExactText(255), nullable=True),
        sa.Column("everything", sa.Boolean(), nullable=True),
        sa.Column("actor", ExactText(255), server_default="", nullable=False),
        sa.Column("reason", ExactText(1024), server_default="", nullable=False),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("until_at", UtcDateTime(), nullable=True),
        sa.UniqueConstraint("owner"),
        sa.UniqueConstraint("everything"),
    )
    _create_index(
        "ix_dynbeat_hold_until_at", "dynbeat_hold", ["until_at"], where="until_at IS NOT NULL"
    )


def _create_change() -> None:
    _create_table(
        "dynbeat_change",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("changed_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("owner", ExactText(255), nullable=True),
        sa.Column("name", ExactText(255), server_default="", nullable=False),
        sa.Column("action", ExactText(32), nullable=False),
        sa.Column("actor", ExactText(255), server_default="", nullable=False),
        sa.Column("reason", ExactText(1024), server_default="", nullable=False),
        sa.Column("old_values", Json("object"), nullable=True),
        sa.Column("new_values", Json("object"), nullable=True),
    )
    _create_index(
        "ix_dynbeat_change_actor",
        "dynbeat_change",
        ["actor", "changed_at", "id"],
        where="actor != ''",
    )
    _create_index("ix_dynbeat_change_changed_at", "dynbeat_change", ["changed_at", "id"])
    _create_index("ix_dynbeat_change_owner", "dynbeat_change", ["owner", "changed_at", "id"])
    _create_index(
        "ix_dynbeat_change_owner_name", "dynbeat_change", ["owner", "name", "changed_at", "id"]
    )


def _create_owner() -> None:
    _create_table(
        "dynbeat_owner",
        sa.Column("owner", ExactText(255), primary_key=True),
        sa.Column("timezone", ExactText(64), nullable=True),
        sa.Column("quiet_hours", Json("object"), nullable=True),
    )


def _create_application() -> None:
    _create_table(
        "dynbeat_application",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("recorded_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("beat_schedule", ExactText(64)),
        sa.Column("entries_digest", ExactText(64)),
        sa.Column("tz_release", ExactText(16)),
        sa.CheckConstraint("id = 1", name="one_row"),
    )


def _create_node() -> None:
    _create_table(
        "dynbeat_node",
        sa.Column("kind", ExactText(16), primary_key=True),
        sa.Column("name", ExactText(255), primary_key=True),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("progressed_at", UtcDateTime(), nullable=True),
        sa.Column("error", LongText(), nullable=True),
        sa.Column("notifier", ExactText(16), nullable=True),
        sa.Column("outages", LongText(), nullable=True),
        sa.Column("clock_offset", sa.Double(), nullable=True),
        sa.Column("queues", LongText(), nullable=True),
        sa.Column("tasks", LongText(), nullable=True),
        sa.Column("entries_digest", ExactText(64), nullable=True),
        sa.Column("entries_seen_at", UtcDateTime(), nullable=True),
        sa.Column("stopped_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("kind IN ('beat', 'worker')", name="kind_known"),
    )


def _create_alert() -> None:
    _create_table(
        "dynbeat_alert",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("schedule_id", BIG_ID, nullable=False),
        sa.Column("owner", ExactText(255), nullable=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("task", ExactText(255), nullable=False),
        sa.Column("kind", ExactText(16), nullable=False),
        sa.Column("opened_at", UtcDateTime(), nullable=False),
        sa.Column("cause", LongText(), nullable=False),
        sa.Column("run_id", RunId(), nullable=True),
        sa.Column("recovered_at", UtcDateTime(), nullable=True),
        sa.Column("unreported", ExactText(16), nullable=True),
        sa.Column("reported_at", UtcDateTime(), nullable=True),
        sa.UniqueConstraint("schedule_id", "kind"),
        sa.CheckConstraint(
            "kind IN ('stopped', 'beats_missing', 'workers_missing', 'silent', 'failing', 'late')",
            name="kind_known",
        ),
        sa.CheckConstraint("unreported IN ('opened', 'recovered')", name="unreported_known"),
    )
    _create_index("ix_dynbeat_alert_recovered_at", "dynbeat_alert", ["recovered_at", "id"])
    _create_index(
        "ix_dynbeat_alert_unreported",
        "dynbeat_alert",
        ["unreported", "id"],
        where="unreported IS NOT NULL",
    )
    _create_index("ix_dynbeat_alert_reported_at", "dynbeat_alert", ["reported_at"])
    _create_index("ix_dynbeat_alert_owner", "dynbeat_alert", ["owner", "id"])


def _create_lock() -> None:
    _create_table(
        "dynbeat_lock",
        sa.Column("name", ExactText(32), primary_key=True),
        sa.Column("leased_by", ExactText(255), nullable=True),
        sa.Column("leased_until", UtcDateTime(), nullable=True),
        sa.Column("done_until", UtcDateTime(), nullable=True),
    )


def _create_rollup() -> None:
    _create_table(
        "dynbeat_rollup",
        sa.Column("minute", UtcDateTime(), primary_key=True),
        sa.Column("queue", ExactText(255), primary_key=True),
        sa.Column("sent", sa.BigInteger(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("lost", sa.BigInteger(), nullable=False),
        sa.Column("other", sa.BigInteger(), nullable=False),
        sa.Column("lag_seconds", sa.Double(), nullable=False),
        sa.Column("lag_max", sa.Double(), nullable=False),
        sa.Column("lags", Json("object"), nullable=False),
        sa.Column("run_seconds", sa.Double(), nullable=False),
        sa.Column("run_times", Json("object"), nullable=False),
    )


def _create_calendar() -> None:
    _create_table(
        "dynbeat_calendar",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("name", ExactText(100), nullable=False),
        sa.Column("dates", LongText(), nullable=False),
        sa.Column("weekend", ExactText(32), server_default="sat,sun", nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("updated_by", ExactText(255), server_default="", nullable=False),
        sa.Column("in_force_at", UtcDateTime(), nullable=True),
        sa.UniqueConstraint("name"),
    )
    _create_table(
        "dynbeat_schedule_calendar",
        sa.Column(
            "schedule_id",
            BIG_ID,
            sa.ForeignKey("dynbeat_schedule.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column(
            "calendar_id",
            BIG_ID,
            sa.ForeignKey("dynbeat_calendar.id", ondelete="RESTRICT"),
            primary_key=True,
        ),
        sa.Column("planned_with", sa.Integer(), nullable=False),
    )
    _create_index(
        "ix_dynbeat_schedule_calendar_planned",
        "dynbeat_schedule_calendar",
        ["calendar_id", "planned_with", "schedule_id"],
    )
