"""Causal services: what a job may ask for that is not a function of its input.

Derived ones (`now`, `random`, `rng`, `uuid4`) cost nothing: they follow from the plan in the log. Recorded
ones (`clock`, `service`) are answered once, acknowledged by the log before anything downstream can publish
what used them, and answered from the log in a replay.
"""
