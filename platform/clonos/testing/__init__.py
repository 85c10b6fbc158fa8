"""What authors of jobs, sources and sinks test with."""
