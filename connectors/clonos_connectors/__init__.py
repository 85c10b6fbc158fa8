"""Repeatable sources: an epoch is a logged range of offsets, in an order that a replay repeats."""
