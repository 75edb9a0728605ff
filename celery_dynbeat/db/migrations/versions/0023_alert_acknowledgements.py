"""Add who acknowledged or snoozed an alert, its last message, and the index of recovered alerts.

Revision: 0023
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import ExactText, UtcDateTime

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

TABLE = "dynbeat_alert"
INDEX = "ix_dynbeat_alert_recovered_at"
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COLUMNS: dict[str, Any] = {
    "acknowledged_at": UtcDateTime(),
    "acknowledged_by": ExactText(255),
    "snoozed_until": UtcDateTime(),
    "snoozed_by": ExactText(255),
    "message_id": BIG_ID,
}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column(TABLE, sa.Column(name, kind, nullable=True))
    where = sa.text("recovered_at IS NOT NULL")
    op.create_index(
        INDEX,
        TABLE,
        ["recovered_at", "id"],
        unique=False,
        postgresql_where=where,
        sqlite_where=where,
    )


def downgrade() -> None:
    op.drop_index(INDEX, TABLE)
    for name in reversed(COLUMNS):
        op.drop_column(TABLE, name)
