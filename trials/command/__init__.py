"""Trials of a command: a training script run as it is, observed and changed at torch's boundaries.

`launch` starts the command for a trial. `startup` puts hooks into every process of it, `hooks`
attaches them when that process imports torch, and `training` is what they tell of the training in
it. `changes` applies a plan, `courses` measures, observes or compares, step by step.
"""
