"""Add how a beat receives notifications.

Revision: 0004
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import ExactText

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dynbeat_node", sa.Column("notifier", ExactText(16), nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_node", "notifier")
