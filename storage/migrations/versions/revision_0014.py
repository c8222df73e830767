"""Keep what trials on uneven batches tell: the longest one, and what was left uncompiled."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the columns, which are unknown of older trials."""
    op.add_column("trials", sa.Column("longest_batch_of", sa.BigInteger()))
    op.add_column("trials", sa.Column("recompile_limit_hits", sa.BigInteger()))
