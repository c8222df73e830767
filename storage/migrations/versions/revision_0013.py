"""Keep what `evaluate` returned in trials that train to a target."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column."""
    op.add_column("trials", sa.Column("quality", sa.JSON()))
