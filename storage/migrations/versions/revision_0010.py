"""Keep what `autotune check` measured of each commit."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Create the table."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "trend_points",
        sa.Column("id", big, nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("machine", sa.String(32), nullable=False),
        sa.Column("hardware", sa.JSON(), nullable=False),
        sa.Column("plan_digest", sa.String(64), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("num_ranks", sa.BigInteger(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("commit_hash", sa.Text()),
        sa.Column("committed_at", sa.DateTime(timezone=True)),
        sa.Column("commit_subject", sa.Text()),
        sa.Column("is_changed", sa.Boolean(), nullable=False),
        sa.Column("num_processes", sa.BigInteger(), nullable=False),
        sa.Column("throughput", sa.Double(), nullable=False),
        sa.Column("throughput_low", sa.Double()),
        sa.Column("throughput_high", sa.Double()),
        sa.Column("memory_bytes", sa.BigInteger()),
        sa.Column("first_step_s", sa.Double()),
        sa.Column("is_drop", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trend_points"),
    )
    op.create_index(
        "ix_trend_points_series", "trend_points", ["workload", "machine", "plan_digest"]
    )
