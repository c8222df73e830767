"""Keep what limits the step of a trial, where that was found out."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; older trials were not diagnosed."""
    op.add_column("trials", sa.Column("diagnosis", sa.JSON()))
