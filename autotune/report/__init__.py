"""What the terminal and the pages both say of runs and trials."""
