"""The benchmarks' job on other systems. Their interpreters run these files, so nothing of Clonos is imported."""
