"""Add alert rules and ping URLs of schedules, and the tables of alerts.

Revision: 0017
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.functions import utc_now
from celery_dynbeat.db.types import ExactText, LongText, RunId, UtcDateTime

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

EMPTY_LIST = sa.text("('[]')")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KINDS = "'failed', 'lost', 'late', 'slow', 'silent', 'frequent', 'quarantined', 'paused'"
TABLES = ("dynbeat_alert_message", "dynbeat_alert_watch", "dynbeat_alert", "dynbeat_alert_event")


def upgrade() -> None:
    _create_events()
    _create_alerts()
    _create_watches()
    _create_messages()
    _add_columns()


def _create_events() -> None:
    _create_table(
        "dynbeat_alert_event",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("kind", ExactText(16), nullable=False),
        sa.Column("schedule_id", BIG_ID, nullable=False),
        sa.Column("run_id", RunId(), nullable=True),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        _check("alert_event", "kind_known", f"kind IN ({KINDS})"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_alert_event")),
    )


def _create_alerts() -> None:
    _create_table(
        "dynbeat_alert",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("schedule_id", BIG_ID, nullable=False),
        sa.Column("owner", ExactText(255), nullable=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("kind", ExactText(16), nullable=False),
        sa.Column("opened_at", UtcDateTime(), nullable=False),
        sa.Column("last_at", UtcDateTime(), nullable=False),
        sa.Column("fact_count", sa.Integer(), server_default="1", nullable=False),
        sa.Column("run_id", RunId(), nullable=True),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("detail", LongText(), nullable=True),
        sa.Column("target", ExactText(64), nullable=False),
        sa.Column("recovered_at", UtcDateTime(), nullable=True),
        sa.Column("unsent", ExactText(16), nullable=True),
        sa.Column("unsent_at", UtcDateTime(), nullable=True),
        sa.Column("checked_at", UtcDateTime(), nullable=True),
        sa.UniqueConstraint("schedule_id", "kind", name=op.f("uq_dynbeat_alert_schedule_id_kind")),
        _check("alert", "kind_known", f"kind IN ({KINDS})"),
        _check("alert", "unsent_known", "unsent IN ('opened', 'recovered')"),
        _check("alert", "checked_while_open", "(checked_at IS NULL) = (recovered_at IS NOT NULL)"),
        _check("alert", "unsent_since", "(unsent IS NULL) = (unsent_at IS NULL)"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_alert")),
    )
    _create_partial("dynbeat_alert", "checked_at", "id")
    _create_partial("dynbeat_alert", "unsent_at", "id")
    op.create_index("ix_dynbeat_alert_owner", "dynbeat_alert", ["owner", "id"], unique=False)


def _create_watches() -> None:
    _create_table(
        "dynbeat_alert_watch",
        sa.Column("schedule_id", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        _schedule_key("dynbeat_alert_watch"),
        sa.PrimaryKeyConstraint("schedule_id", name=op.f("pk_dynbeat_alert_watch")),
    )
    op.create_index(
        "ix_dynbeat_alert_watch_due_at", "dynbeat_alert_watch", ["due_at"], unique=False
    )


def _create_messages() -> None:
    _create_table(
        "dynbeat_alert_message",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("target", ExactText(64), nullable=False),
        sa.Column("severity", ExactText(16), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_try_at", UtcDateTime(), nullable=True),
        sa.Column("leased_by", ExactText(255), nullable=True),
        sa.Column("leased_until", UtcDateTime(), nullable=True),
        sa.Column("delivered", sa.JSON(), server_default=EMPTY_LIST, nullable=False),
        sa.Column("error", LongText(), nullable=True),
        sa.Column("sent_at", UtcDateTime(), nullable=True),
        sa.Column("dropped_at", UtcDateTime(), nullable=True),
        _check("alert_message", "severity_known", "severity IN ('error', 'warning', 'info')"),
        _check(
            "alert_message",
            "tried_until_ended",
            "next_try_at IS NULL OR (sent_at IS NULL AND dropped_at IS NULL)",
        ),
        *(
            _check("alert_message", f"{name}_json", f"json_valid({name})").ddl_if(dialect="sqlite")
            for name in ("payload", "delivered")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_alert_message")),
    )
    _create_partial("dynbeat_alert_message", "next_try_at")
    op.create_index(
        "ix_dynbeat_alert_message_target", "dynbeat_alert_message", ["target", "id"], unique=False
    )


def _create_table(name: str, *items: Any) -> None:
    op.create_table(name, *items, mariadb_charset="utf8mb4", mysql_charset="utf8mb4")


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_dynbeat_{table}_{name}"))


def _schedule_key(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["schedule_id"],
        ["dynbeat_schedule.id"],
        name=op.f(f"fk_{table}_schedule_id"),
        ondelete="CASCADE",
    )


def _create_partial(table: str, *columns: str) -> None:
    where = sa.text(f"{columns[0]} IS NOT NULL")
    op.create_index(
        f"ix_{table}_{columns[0]}",
        table,
        list(columns),
        unique=False,
        postgresql_where=where,
        sqlite_where=where,
    )


def _add_columns() -> None:
    if op.get_context().dialect.name == "sqlite":
        # With its constraint: SQLite cannot add one to a table later.
        op.execute(
            "ALTER TABLE dynbeat_schedule ADD COLUMN alerts JSON"
            " CONSTRAINT ck_dynbeat_schedule_alerts_json"
            " CHECK (alerts IS NULL OR json_valid(alerts))"
        )
    else:
        op.add_column("dynbeat_schedule", sa.Column("alerts", sa.JSON(), nullable=True))
    op.add_column("dynbeat_schedule", sa.Column("ping_url", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_schedule", "ping_url")
    op.drop_column("dynbeat_schedule", "alerts")
    for table in TABLES:
        op.drop_table(table)
