"""Add the order of the messages to a target, and the index of unsent alerts by target.

Revision: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

ALERTS, MESSAGES = "dynbeat_alert", "dynbeat_alert_message"
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column(MESSAGES, sa.Column("previous_id", BIG_ID, nullable=True))
    name = "uq_dynbeat_alert_message_previous_id"
    op.create_index(name, MESSAGES, ["target", "previous_id"], unique=True)
    columns = ["target", "unsent_at", "id"]
    op.create_index("ix_dynbeat_alert_target", ALERTS, columns, unique=False)
    op.drop_index("ix_dynbeat_alert_unsent_at", ALERTS)


def downgrade() -> None:
    where = sa.text("unsent_at IS NOT NULL")
    op.create_index(
        "ix_dynbeat_alert_unsent_at",
        ALERTS,
        ["unsent_at", "id"],
        unique=False,
        postgresql_where=where,
        sqlite_where=where,
    )
    op.drop_index("ix_dynbeat_alert_target", ALERTS)
    op.drop_index("uq_dynbeat_alert_message_previous_id", MESSAGES)
    op.drop_column(MESSAGES, "previous_id")
