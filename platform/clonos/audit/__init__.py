"""Compares what readers see of a job's output with the markers in its causal log (`clonos verify`)."""
