"""Watches a topic as a driver does, as often as it can, until SIGTERM; prints each state of the broker that it sees."""

from __future__ import annotations

import os
import signal
import sys
import threading

from clonos.driver.lag import LagMeter
from clonos.driver.watches import KafkaWatch, OpenTransactions
from clonos.partition_offsets import OffsetClient
from clonos.settings import Settings
from clonos.telemetry.driver_events import as_line

EVERY_S = 0.002


def main(topic: str) -> None:
    """Watch the topic."""
    kafka = Settings().kafka
    meter = LagMeter(OffsetClient(kafka), lambda _event: None, every_s=EVERY_S)
    meter.note_start("query", {topic: {0: 0}})
    transactions = OpenTransactions(OffsetClient(kafka), lambda _event: None)
    transactions.watch(read=[topic], written=[])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for _ in range(3):
        KafkaWatch(kafka, lambda event: print(as_line(event), flush=True), log=topic, every_s=EVERY_S).start()
    meter.start()
    transactions.start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
