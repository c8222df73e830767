"""The service's pages in the dashboard."""
