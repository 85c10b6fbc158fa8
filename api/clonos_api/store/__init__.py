"""What the control plane remembers: tables, the one way to change each, and the leader's lease."""
