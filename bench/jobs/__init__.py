"""What the benchmarks run: one job, on Clonos and on plain Spark."""
