"""Reports of a process about itself: events, log lines, traces and OpenLineage events, without secrets."""
