"""Keep on how many ranks each trial ran."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column; older trials ran on one rank."""
    ranks = sa.Column("num_ranks", sa.BigInteger(), nullable=False, server_default="1")
    op.add_column("trials", ranks)
