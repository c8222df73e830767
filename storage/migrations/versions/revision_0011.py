"""Keep the search service's jobs, tokens and audit, and which server is in charge of them."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

# SQLite numbers rows by itself only for INTEGER, which is 64 bits wide there.
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables."""
    _create_jobs()
    op.create_table(
        "job_events",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_events_jobs"),
        sa.PrimaryKeyConstraint("id", name="pk_job_events"),
    )
    op.create_index("ix_job_events_job_id", "job_events", ["job_id", "id"])
    op.create_table(
        "tokens",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("max_devices", sa.BigInteger()),
        sa.Column("max_hours", sa.Double()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("name", name="uq_tokens_name"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    op.create_table(
        "audit",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_table(
        "servers",
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("beats", sa.BigInteger(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("role", name="pk_servers"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("run_name", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255)),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("num_devices", sa.BigInteger(), nullable=False),
        sa.Column("budget_s", sa.Double(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("server", sa.Text()),
        sa.Column("process", sa.Text()),
        sa.Column("num_starts", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("cancelled_by", sa.String(255)),
        sa.Column("cancelled_at", TIME),
        sa.Column("exit_code", sa.BigInteger()),
        sa.Column("message", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("key", name="uq_jobs_key"),
        sa.UniqueConstraint("run_name", name="uq_jobs_run_name"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
