"""Ends the transactions that a killed driver left open, so that no reader waits for them until they time out.

``python -m clonos.agent.ending JOB PLATFORM``, with the environment of the job's driver. An agent runs it after it has
killed the driver of a job for which no further driver follows.
"""

from __future__ import annotations

import sys

from clonos.embedded.reachable import reachable_kafka
from clonos.errors import ClonosError
from clonos.log.control import control_id, known_control, lane_id
from clonos.log.topic import log_topic
from clonos.log.transaction import TransactionalProducer
from clonos.settings import KafkaSettings, Settings


def end_transactions(kafka: KafkaSettings, job: str, platform: str = "") -> int:
    """Abort all open transactions of a job, and fence its producers; returns the number of transactional ids.

    If a driver of the job still runs, it opens other producers and replays its epoch. One of another platform
    than `platform` (an id; empty: unknown) is left alone: its claim has ended the transactions already.

    Raises:
        BrokerUnavailable: Kafka did not answer.
    """
    state = known_control(kafka, job)
    owner = state.claim.platform if state is not None and state.claim is not None else None
    if state is None or (platform and owner is not None and owner.id != platform):
        return 0
    ids = [control_id(job), *(lane_id(job, sink, lane) for sink, lane in state.lanes)]
    for transactional_id in ids:
        TransactionalProducer(kafka, transactional_id, log_topic(job))  # its init aborts what is open
    return len(ids)


if __name__ == "__main__":
    try:
        end_transactions(reachable_kafka(Settings()), *sys.argv[1:3])
    except ClonosError as failure:
        sys.exit(str(failure))
