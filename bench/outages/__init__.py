"""Parts of `bench.recovery`: the platform under test, what is killed, and what is checked afterwards."""
