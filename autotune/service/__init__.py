"""A queue of runs for a team: a server that starts them, and the client that submits them."""
