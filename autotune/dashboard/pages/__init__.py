"""One module for each page: what it shows, and what it answers."""
