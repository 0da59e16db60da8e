"""The stored form of a record: nothing is lost, and it sorts by the first ordinal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.state import DELETED, UNKNOWN, Kind, etag_of
from gateway.storage.records import RECORD_BYTES, EntityRecord, ordinal_bytes, packed, unpacked

ordinals = st.integers(0, (1 << 63) - 1)
sizes = st.integers(0, (1 << 32) - 1)
states = st.one_of(
    st.binary(max_size=3).map(lambda body: (Kind.PRESENT, etag_of(None, body))),
    st.sampled_from([(DELETED.kind, DELETED.etag), (UNKNOWN.kind, UNKNOWN.etag)]),
)
records = st.builds(
    lambda state, *others: EntityRecord("/a", *state, *others),
    states,
    ordinals,
    st.none() | st.integers(-(1 << 62), 1 << 62),
    sizes,
    sizes,
    st.booleans(),
    ordinals,
)


@given(records)
def test_a_record_is_what_it_was(record):
    stored = packed(record)
    assert len(stored) == RECORD_BYTES
    assert unpacked("/a", stored) == record


@given(records, ordinals)
def test_stored_records_compare_to_ordinals_as_their_first_ones_do(record, ordinal):
    assert (packed(record) >= ordinal_bytes(ordinal)) == (record.first_ordinal >= ordinal)
