"""Run all benchmarks."""

from __future__ import annotations

from bench import protocol

if __name__ == "__main__":
    protocol.main()
