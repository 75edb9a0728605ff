"""Add the trace context of a run.

Revision: 0020
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import ExactText

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dynbeat_run", sa.Column("traceparent", ExactText(55), nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_run", "traceparent")
