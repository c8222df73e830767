"""How fast a step is, and whether it still trains as before."""
