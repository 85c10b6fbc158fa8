"""Spark: its JVM and session, its plans and checkpoints, and one epoch from plan to end."""
