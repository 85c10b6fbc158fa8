"""Brings what is to what somebody asked for.

Decisions are pure (`decide`); `service` reads the facts, has them decided, and writes, as the one leader.
"""
