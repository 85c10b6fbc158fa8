"""The job of the benchmarks, for Clonos and for plain Spark."""
