"""Remembers runs, trials and plans. The only importer of SQLAlchemy and Alembic."""
