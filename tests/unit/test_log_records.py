"""Records of the causal log: what is written is what is read, and nothing else is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.errors import CausalLogDamaged, ForeignRecord
from clonos.log.records import (
    VERSION,
    Allot,
    Allotment,
    Claim,
    Determinants,
    End,
    Entry,
    Held,
    Marker,
    Owner,
    Plan,
    Record,
    Resolution,
    decode,
    encode,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 2**40)
owners = st.builds(Owner, numbers, numbers, texts)
helds = st.builds(Held, texts, texts, epochs, st.integers(-2, 2**40), epochs)
markers = st.builds(Marker, owners, texts, epochs, epochs, helds, epochs, st.binary(max_size=16))
allotments = st.lists(st.builds(Allotment, texts, epochs, epochs), max_size=3).map(tuple)
held_tuples = st.lists(helds, max_size=3).map(tuple)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        Claim, owners, epochs, st.none() | markers, allotments, st.dictionaries(texts, st.integers(-1, 99), max_size=3)
    ),
    st.builds(Allot, owners, allotments),
    st.builds(
        Plan,
        owners,
        texts,
        epochs,
        held_tuples,
        st.lists(held_tuples, max_size=2).map(tuple),
        st.lists(epochs, max_size=3).map(tuple),
        st.dictionaries(epochs, epochs, max_size=3),
        numbers,
        texts,
        texts,
        epochs,
    ),
    st.builds(
        Determinants,
        owners,
        texts,
        epochs,
        texts,
        epochs,
        st.lists(st.builds(Entry, st.binary(max_size=16), st.binary(max_size=30), st.booleans()), max_size=3).map(
            tuple
        ),
    ),
    markers,
    st.builds(End, owners, texts, epochs, epochs),
    st.builds(Resolution, owners, texts, epochs, texts, texts),
)


@given(records)
def test_round_trip(record: Record) -> None:
    value = encode(record)
    assert value[:1] == VERSION
    assert decode(value, where="here") == record
    assert type(decode(value, where="here")) is type(record)


@given(st.none() | st.binary(max_size=200).filter(lambda value: not b"\x02" <= value[:1] <= b"\x08"))
def test_foreign_bytes(value: bytes | None) -> None:
    """Bytes made at random are refused (none of them is a whole record by chance)."""
    with pytest.raises(ForeignRecord, match="here@7 holds a record that Clonos did not write"):
        decode(value, where="here@7")


@given(records, st.integers(2, 8))
def test_a_newer_version_is_refused(record: Record, version: int) -> None:
    with pytest.raises(CausalLogDamaged, match=f"version {version} of the log's format") as refused:
        decode(bytes([version]) + encode(record)[1:], where="here")
    assert type(refused.value) is CausalLogDamaged, ForeignRecord


@given(records, st.integers(9, 255))
def test_what_cannot_be_a_version_is_foreign(record: Record, version: int) -> None:
    with pytest.raises(ForeignRecord):
        decode(bytes([version]) + encode(record)[1:], where="here")


@given(records, st.data())
def test_a_cut_record_is_refused(record: Record, data: st.DataObject) -> None:
    value = encode(record)
    with pytest.raises(CausalLogDamaged):
        decode(value[: data.draw(st.integers(0, len(value) - 1))], where="here")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CausalLogDamaged):
        decode(VERSION + msgspec.msgpack.encode({"type": "unheard", "owner": [1, 1, "a"]}), where="here")


def test_the_newer_owner() -> None:
    old = Owner(1, 4, "z")
    assert Owner(1, 5, "a").newer_than(old)
    assert Owner(2, 1, "a").newer_than(old)
    assert not Owner(1, 4, "a").newer_than(old)  # the driver id says nothing of time
    assert not old.newer_than(old)


def test_names_in_messages() -> None:
    assert str(Owner(1, 2, "0123456789abcdef")) == "1.2/01234567"
    assert str(Held("range", "lines", 2, 10, 20)) == "lines[2] 10..20"
    assert str(Held("hash", "", 3, 0, 8)) == "hash 3/8"


def test_entries_of_older_records_name_no_service() -> None:
    old = msgspec.msgpack.encode([b"k" * 16, b"v", False])
    assert msgspec.msgpack.decode(old, type=Entry) == Entry(b"k" * 16, b"v")
    new = msgspec.msgpack.encode(Entry(b"k" * 16, b"v", service="ask"))
    assert msgspec.msgpack.decode(new, type=Entry).service == "ask"
