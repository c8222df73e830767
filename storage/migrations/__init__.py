"""Alembic's migrations; `autotune.storage.schema` runs them."""
