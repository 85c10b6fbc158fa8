"""Clonos beside other systems that process Kafka records in Python, each in an environment of its own."""
