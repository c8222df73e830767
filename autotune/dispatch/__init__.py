"""Runs trials somewhere: the Runner seam, the Ray runner, the replay runner."""
