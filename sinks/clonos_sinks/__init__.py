"""Sinks that publish every epoch exactly once."""
