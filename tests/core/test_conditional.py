"""Preconditions and ranges as RFC 9110 has them."""

from __future__ import annotations

import pytest

from gateway.core.conditional import Outcome, byte_range, evaluate, matches_strongly, matches_weakly

ETAG = '"abc"'
DATE_MS = 1_700_000_000_500
SAME, EARLIER, LATER = (
    "Tue, 14 Nov 2023 22:13:20 GMT",
    "Tue, 14 Nov 2023 22:13:19 GMT",
    "Tue, 14 Nov 2023 22:13:21 GMT",
)


@pytest.mark.parametrize(
    ("header", "weakly", "strongly"),
    [
        ('"abc"', True, True),
        ('W/"abc"', True, False),
        ('"x", "abc"', True, True),
        ('"x" , W/"abc"', True, False),
        ('"a,bc", "abc"', True, True),
        ('"x"', False, False),
        ("abc", False, False),
        ("", False, False),
        ('"abc" "x"', True, True),
        ('"abcd"', False, False),
    ],
)
def test_entity_tags_compare_weakly_and_strongly(header, weakly, strongly):
    assert matches_weakly(header, ETAG) is weakly
    assert matches_strongly(header, ETAG) is strongly


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, Outcome.PROCEED),
        ({"if_none_match": ETAG}, Outcome.NOT_MODIFIED),
        ({"if_none_match": "*"}, Outcome.NOT_MODIFIED),
        ({"if_none_match": '"x"'}, Outcome.PROCEED),
        ({"if_none_match": '"x"', "if_modified_since": SAME}, Outcome.PROCEED),
        ({"if_modified_since": SAME}, Outcome.NOT_MODIFIED),
        ({"if_modified_since": LATER}, Outcome.NOT_MODIFIED),
        ({"if_modified_since": EARLIER}, Outcome.PROCEED),
        ({"if_modified_since": "yesterday"}, Outcome.PROCEED),
        ({"if_match": ETAG}, Outcome.PROCEED),
        ({"if_match": "*"}, Outcome.PROCEED),
        ({"if_match": '"x"'}, Outcome.FAILED),
        ({"if_match": 'W/"abc"'}, Outcome.FAILED),
        ({"if_match": ETAG, "if_none_match": ETAG}, Outcome.NOT_MODIFIED),
        ({"if_unmodified_since": EARLIER}, Outcome.FAILED),
        ({"if_unmodified_since": SAME}, Outcome.PROCEED),
        ({"if_match": ETAG, "if_unmodified_since": EARLIER}, Outcome.PROCEED),
    ],
)
def test_preconditions_are_evaluated_in_the_order_of_the_specification(headers, outcome):
    assert evaluate(ETAG, modified_ms=DATE_MS, **headers) is outcome


def test_dates_are_not_compared_where_there_is_none():
    assert evaluate(ETAG, if_modified_since=LATER) is Outcome.PROCEED


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=2-", slice(2, 10)),
        ("bytes=2-100", slice(2, 10)),
        ("bytes=-3", slice(7, 10)),
        ("bytes=-100", slice(0, 10)),
        ("Bytes=1-2", slice(1, 3)),
        ("bytes=10-", False),
        ("bytes=-0", False),
        ("bytes=5-2", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("bytes=-", None),
        ("bytes", None),
    ],
)
def test_one_satisfiable_range_is_taken_and_what_is_malformed_ignored(header, expected):
    assert byte_range(header, 10, etag=ETAG) == expected


def test_if_range_compares_strongly():
    assert byte_range("bytes=0-1", 10, etag=ETAG, if_range=ETAG) == slice(0, 2)
    assert byte_range("bytes=0-1", 10, etag=ETAG, if_range='W/"abc"') is None
    assert byte_range("bytes=0-1", 10, etag=ETAG, if_range=SAME) is None
