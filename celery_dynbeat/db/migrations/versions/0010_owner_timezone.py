"""Add the time zone of an owner, and whether a schedule follows it.

Revision: 0010
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import ExactText

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dynbeat_owner", sa.Column("timezone", ExactText(64), nullable=True))
    op.add_column(
        "dynbeat_schedule",
        sa.Column("inherits_timezone", sa.Boolean(), server_default=sa.false(), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("dynbeat_schedule", "inherits_timezone")
    op.drop_column("dynbeat_owner", "timezone")
