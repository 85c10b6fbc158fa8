"""Checker of this example: judges a run of the demo by the published records.

- *expected*: one total for each acknowledged order, one copy in ``late`` and in ``sample`` for each total published
  as such, and a notice in ``inactive`` wherever the published records themselves show that a customer's timer was
  due: an epoch between a customer's orders (or after the last one) whose time is past the timer;
- *order break*, besides an order that overtakes another of its customer: notices of a customer that go back.

The checker computes sums from published records: the n-th total of a customer is the sum of n published orders.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from clonos_demo.evidence import Evidence, Published, Sourced, SourcePosition
from clonos_demo.example import Example
from clonos_demo.verdict import Fault, Findings, Verdict, copies, json_record, once_in_order, readable, where

# As examples/orders/job.py has them; said again because nothing here may come from the job.
LATE_MS = 10_000
IDLE_MS = 3_000


class Contradiction(StrEnum):
    """What cannot be."""

    UNEXPECTED = "record for an order that is not in the source"
    WRONG_TOTAL = "total that is not the sum of the published orders it counts"
    WRONG_LATE = "order marked late that is not, or late and not marked"
    COPY_MISMATCH = "copy that does not agree with its totals record"
    TWO_TIMES = "two times for one epoch"
    EPOCH_BACK = "order of an epoch before that of the customer's previous order"
    EARLY_NOTICE = "notice before the customer's timer was due"
    WRONG_NOTICE = "notice that does not agree with the customer's published totals"


class Order(msgspec.Struct, frozen=True):
    """The value of a source record."""

    order: str
    customer: str
    cents: int
    at: int


class TotalValue(Sourced, frozen=True):
    """The value of a record in ``totals``, ``late`` and ``sample``."""

    customer: str
    order: str
    cents: int
    orders: int
    total: int
    late: bool
    sampled: bool
    at: int
    epoch: int


class Notice(msgspec.Struct, frozen=True):
    """The value of a record in ``inactive``: a customer sent no order for `IDLE_MS` after its order number `orders`."""

    customer: str
    orders: int
    total: int
    at: int
    epoch: int


_ORDER = msgspec.json.Decoder(Order)
_read_total = json_record(TotalValue)
_read_notice = json_record(Notice)


def check(evidence: Evidence) -> Verdict:
    """Judge the evidence."""
    findings = Findings()
    expected = {sent.position: _ORDER.decode(sent.value) for sent in evidence.sent}
    totals = readable(evidence.output("totals"), _read_total, findings)
    seen = once_in_order("total", totals, findings, _customer)
    for position in expected.keys() - seen.keys():
        findings.add(Fault.LOST, f"order {expected[position].order} of {tuple(position)}")
    accounts = _checked_sums(totals, expected, findings)
    chosen = 0
    for name, wanted in (
        ("late", {position: value for position, value in seen.items() if value.late}),
        ("sample", {position: value for position, value in seen.items() if value.sampled}),
    ):
        values = readable(evidence.output(name), _read_total, findings)
        copies(f"{name} order", values, wanted, findings, Contradiction.COPY_MISMATCH, _customer)
        chosen += len(wanted)
    notices = readable(evidence.output("inactive"), _read_notice, findings)
    times = _checked_times([value for _, value in totals], [notice for _, notice in notices], findings)
    due, open_ends = _checked_notices(accounts, notices, times, findings)
    return findings.verdict(
        records_in=len(expected),
        expected=len(expected) + chosen + due,
        published=sum(len(evidence.output(name)) for name in EXAMPLE.outputs),
        unfinished=open_ends,
    )


def _customer(value: TotalValue) -> str:
    # A shuffle mixes customers; the order of each one's orders stays.
    return value.customer


def _checked_sums(
    totals: Sequence[tuple[Published, TotalValue]], expected: Mapping[SourcePosition, Order], findings: Findings
) -> dict[str, list[TotalValue]]:
    """Add up each customer's published orders in the order of the log; return them, without repeats."""
    accounts: dict[str, list[TotalValue]] = defaultdict(list)
    latest: dict[str, int] = {}
    repeated: set[SourcePosition] = set()
    for record, value in totals:
        if value.position in repeated:
            continue  # a duplicate is counted as one already
        repeated.add(value.position)
        order = expected.get(value.position)
        if order is None or (order.order, order.customer, order.cents) != (value.order, value.customer, value.cents):
            findings.add(Contradiction.UNEXPECTED, f"{value.order!r} of {tuple(value.position)} at {where(record)}")
            continue
        account = accounts[value.customer]
        # Continues from the last published total, so that one wrong sum is one fault.
        orders, total, epoch = (account[-1].orders, account[-1].total, account[-1].epoch) if account else (0, 0, 0)
        if (value.orders, value.total) != (orders + 1, total + value.cents):
            findings.add(
                Contradiction.WRONG_TOTAL,
                f"{value.customer} at {where(record)}: order {value.orders}, total {value.total}; "
                f"published are {orders + 1} orders, {total + value.cents}",
            )
        if value.epoch < epoch:
            findings.add(Contradiction.EPOCH_BACK, f"{value.customer} at {where(record)}: {value.epoch} after {epoch}")
        newest = latest.get(value.customer, order.at)
        if value.late != (order.at < newest - LATE_MS):
            findings.add(Contradiction.WRONG_LATE, f"{value.order!r} at {where(record)}: late={value.late}")
        latest[value.customer] = max(newest, order.at)
        account.append(value)
    return accounts


def _checked_times(totals: Sequence[TotalValue], notices: Sequence[Notice], findings: Findings) -> dict[int, int]:
    """When each epoch was that published anything."""
    times: dict[int, int] = {}
    stamps = [(value.epoch, value.at) for value in totals] + [(notice.epoch, notice.at) for notice in notices]
    for epoch, at in stamps:
        if times.setdefault(epoch, at) != at:
            findings.add(Contradiction.TWO_TIMES, f"epoch {epoch}: {times[epoch]} and {at}")
    return times


def _checked_notices(
    accounts: Mapping[str, Sequence[TotalValue]],
    notices: Sequence[tuple[Published, Notice]],
    times: Mapping[int, int],
    findings: Findings,
) -> tuple[int, int]:
    """Check the notices; return how many were due by now, and how many customers' last orders wait for one."""
    first_notices: dict[tuple[str, int], Notice] = {}
    last: dict[str, int] = {}
    for record, notice in notices:
        key = (notice.customer, notice.orders)
        if key in first_notices:
            findings.add(Fault.DUPLICATE, f"notice {key} again at {where(record)}")
            continue
        first_notices[key] = notice
        if notice.orders < last.get(notice.customer, 0):
            findings.add(Fault.ORDER, f"notice {key} at {where(record)} after that of {last[notice.customer]} orders")
        last[notice.customer] = notice.orders
    epochs = sorted(times)
    due: set[tuple[str, int]] = set()
    open_ends = 0
    for customer, account in accounts.items():
        for value, following in zip(account, [*account[1:], None], strict=True):
            key = (customer, value.orders)
            alarm = value.at + IDLE_MS
            # In an epoch, orders come before timers and reset the timer: only epochs in between can fire it.
            before = bisect_left(epochs, following.epoch) if following else len(epochs)
            rang = before > 0 and epochs[before - 1] > value.epoch and times[epochs[before - 1]] > alarm
            if key not in first_notices:
                if rang:
                    due.add(key)
                    findings.add(Fault.LOST, f"notice {key}, due at {alarm}")
                elif following is None:
                    open_ends += 1
                continue
            notice = first_notices.pop(key)
            due.add(key)
            if notice.at < alarm or notice.epoch <= value.epoch:
                findings.add(Contradiction.EARLY_NOTICE, f"{key} at {notice.at}, due at {alarm}")
            if notice.total != value.total or (following and notice.epoch >= following.epoch):
                findings.add(Contradiction.WRONG_NOTICE, f"{key}: total {notice.total} in epoch {notice.epoch}")
    for key in first_notices:
        findings.add(Contradiction.WRONG_NOTICE, f"{key}: no such published total")
    return len(due), open_ends


EXAMPLE = Example(name="orders", source="orders", outputs=("totals", "late", "sample", "inactive"), check=check)
