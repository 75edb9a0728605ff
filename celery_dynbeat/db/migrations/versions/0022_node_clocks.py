"""Add the offset of the clock of a node, and the kinds of alerts about nodes.

Revision: 0022
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import ExactText, LongText, RunId, UtcDateTime

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

TABLE = "dynbeat_alert"
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KINDS = "'failed', 'lost', 'late', 'slow', 'silent', 'frequent', 'quarantined', 'paused'"
NEW_KINDS = "'beats_missing', 'workers_missing', 'clocks_differ'"


def upgrade() -> None:
    op.add_column("dynbeat_node", sa.Column("clock_offset", sa.Double(), nullable=True))
    _allow(f"{KINDS}, {NEW_KINDS}")


def downgrade() -> None:
    op.execute(
        "DELETE FROM dynbeat_alert"
        " WHERE kind IN ('beats_missing', 'workers_missing', 'clocks_differ')"
    )
    _allow(KINDS)
    op.drop_column("dynbeat_node", "clock_offset")


def _allow(kinds: str) -> None:
    """Replace the constraint of the kinds of alerts."""
    known = f"kind IN ({kinds})"
    if op.get_context().dialect.name == "sqlite":
        _copy(known)
        return
    name = op.f("ck_dynbeat_alert_kind_known")
    op.drop_constraint(name, TABLE, type_="check")
    op.create_check_constraint(name, TABLE, known)


def _copy(known: str) -> None:
    """Copy the table: SQLite cannot change a constraint. No other table refers to this one."""
    copy = f"{TABLE}_copy"
    columns = [
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
    ]
    checks = {
        "kind_known": known,
        "unsent_known": "unsent IN ('opened', 'recovered')",
        "checked_while_open": "(checked_at IS NULL) = (recovered_at IS NOT NULL)",
        "unsent_since": "(unsent IS NULL) = (unsent_at IS NULL)",
    }
    op.create_table(
        copy,
        *columns,
        *(sa.CheckConstraint(sql, name=op.f(f"ck_{TABLE}_{name}")) for name, sql in checks.items()),
        sa.UniqueConstraint("schedule_id", "kind", name=op.f(f"uq_{TABLE}_schedule_id_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{TABLE}")),
    )
    # The columns of both tables have the same order.
    op.execute("INSERT INTO dynbeat_alert_copy SELECT * FROM dynbeat_alert")
    op.drop_table(TABLE)
    op.rename_table(copy, TABLE)
    where = sa.text("checked_at IS NOT NULL")
    op.create_index(
        f"ix_{TABLE}_checked_at", TABLE, ["checked_at", "id"], unique=False, sqlite_where=where
    )
    op.create_index(f"ix_{TABLE}_target", TABLE, ["target", "unsent_at", "id"], unique=False)
    op.create_index(f"ix_{TABLE}_owner", TABLE, ["owner", "id"], unique=False)
