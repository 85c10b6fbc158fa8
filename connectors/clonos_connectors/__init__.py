"""Repeatable sources for jobs: an epoch is a logged range of offsets, and a replay reads the range in the same
order.
"""
