"""Add the task of a request to run ended runs again.

Revision: 0016
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import ExactText

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dynbeat_rerun", sa.Column("task", ExactText(255), nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_rerun", "task")
