"""What Prometheus reads of a replica: `families` are the figures, `reading` gets them from the store."""
