"""The store: it keeps runs, trials and winners. No other package imports SQLAlchemy."""
