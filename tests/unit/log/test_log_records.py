"""Records of the causal log: encoding, decoding and refusal of foreign bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.errors import CausalLogDamaged, ForeignRecord, LogFormatUnsupported
from clonos.log.records import (
    VERSION,
    AssignLanes,
    Claim,
    Determinant,
    Determinants,
    EpochCommitted,
    EpochParts,
    InputSlice,
    LaneAssignment,
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
input_slices = st.builds(InputSlice, texts, texts, epochs, st.integers(-2, 2**40), epochs)
markers = st.builds(Marker, owners, texts, epochs, epochs, input_slices, epochs, st.binary(max_size=16))
assignments = st.lists(st.builds(LaneAssignment, texts, epochs, epochs), max_size=3).map(tuple)
slice_tuples = st.lists(input_slices, max_size=3).map(tuple)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        Claim, owners, epochs, st.none() | markers, assignments, st.dictionaries(texts, st.integers(-1, 99), max_size=3)
    ),
    st.builds(AssignLanes, owners, assignments),
    st.builds(
        Plan,
        owners,
        texts,
        epochs,
        slice_tuples,
        st.lists(slice_tuples, max_size=2).map(tuple),
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
        st.lists(st.builds(Determinant, st.binary(max_size=16), st.binary(max_size=30), st.booleans()), max_size=3).map(
            tuple
        ),
    ),
    markers,
    st.builds(EpochCommitted, owners, texts, epochs, epochs),
    st.builds(
        EpochParts, owners, texts, epochs, st.lists(st.binary(max_size=9), max_size=3).map(tuple), epochs, st.binary()
    ),
    st.builds(Resolution, owners, texts, epochs, texts, texts),
)


@given(records)
def test_round_trip(record: Record) -> None:
    value = encode(record)
    assert value[:1] == VERSION
    assert decode(value, where="here") == record
    assert type(decode(value, where="here")) is type(record)


@given(st.none() | st.binary(max_size=200).filter(lambda value: not b"\x01" <= value[:1] <= b"\x08"))
def test_foreign_bytes(value: bytes | None) -> None:
    """Random bytes are refused (none of them is a whole record by chance)."""
    with pytest.raises(ForeignRecord, match="here@7 holds a record that Clonos did not write"):
        decode(value, where="here@7")


@given(records, st.sampled_from([1, 2, 4, 8, 9, 200, 255]))
def test_another_format_version_is_refused(record: Record, version: int) -> None:
    with pytest.raises(LogFormatUnsupported) as refused:
        decode(bytes([version]) + encode(record)[1:], where="here@7")
    assert refused.value.what == (
        f"here@7 has version {version} of the causal log's format; this Clonos reads version 3."
    )


@pytest.mark.parametrize("value", [b"{}", b'{"type":"plan"}', b"\xc8type", b"\x00\x81\xa4type\xa4plan"])
def test_values_of_other_programs_are_foreign(value: bytes) -> None:
    with pytest.raises(ForeignRecord):
        decode(value, where="here")


@given(records, st.data())
def test_a_cut_record_is_refused(record: Record, data: st.DataObject) -> None:
    value = encode(record)
    with pytest.raises(CausalLogDamaged):
        decode(value[: data.draw(st.integers(0, len(value) - 1))], where="here")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CausalLogDamaged):
        decode(VERSION + msgspec.msgpack.encode({"type": "unknown", "owner": [1, 1, "a"]}), where="here")


def test_names_in_messages() -> None:
    assert str(Owner(1, 2, "0123456789abcdef")) == "1.2/01234567"
    assert str(InputSlice("range", "lines", 2, 10, 20)) == "lines[2] 10..20"
    assert str(InputSlice("hash", "", 3, 0, 8)) == "hash 3/8"
