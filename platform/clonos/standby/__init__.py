"""Standbys: drivers that are warm, wait, and take a job over when they are told to (design §7)."""
