"""Index what overviews of a run read, so that they need not load its trials."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Replace the index of outcomes by one that also holds what charts show."""
    op.create_index(
        "ix_trials_measured",
        "trials",
        [
            "run_id",
            "outcome",
            "num_ranks",
            "purpose",
            "number",
            "throughput",
            "peak_reserved_overall_bytes",
            "peak_host_bytes",
            "finished_at",
        ],
    )
    op.drop_index("ix_trials_outcome", "trials")
