"""Parts of `bench.recovery`: the platform under test, its victims, and the checks of the output."""
