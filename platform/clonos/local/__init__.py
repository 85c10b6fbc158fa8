"""`clonos up`: Kafka, the control plane and agents that stand for hosts, all on one machine."""
