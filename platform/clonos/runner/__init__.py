"""The driver process of one job: define, claim, run, recover."""
