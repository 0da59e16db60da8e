"""What events make of an entity, and that the digest of many is the same in any order."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.event import Event, Method
from gateway.core.patch import PATCHED_BYTES_MAX
from gateway.core.state import DELETED, UNKNOWN, Digest, Entity, Kind, apply, etag_of, term

MERGE = "application/merge-patch+json"
OPERATIONS = "application/json-patch+json"
GZIP = (("Content-Encoding", "gzip"),)


def put(body, content_type="application/json", extra_headers=()):
    return Event(Method.PUT, "/a", content_type, body, None, extra_headers)


def patch(body, content_type=MERGE, extra_headers=()):
    return Event(Method.PATCH, "/a", content_type, body, None, extra_headers)


DELETE = Event(Method.DELETE, "/a", None, b"")
POST = Event(Method.POST, "/a", "application/json", b'{"b":2}')
ADD = b'[{"op":"add","path":"/b","value":1.10}]'


def state_after(*events):
    entity = None
    for event in events:
        entity = apply(entity, event)
    return entity


def present(content_type, body, extra_headers=()):
    return Entity(Kind.PRESENT, etag_of(content_type, body), content_type, body, extra_headers)


def test_the_etag_is_the_start_of_the_hash_of_type_and_body():
    assert (
        etag_of("text/plain", b"x") == f'"{hashlib.sha256(b"text/plain" + bytes(1) + b"x").hexdigest()[:32]}"'
    )
    assert etag_of(None, b"x") == etag_of("", b"x") == f'"{hashlib.sha256(bytes(1) + b"x").hexdigest()[:32]}"'


def test_a_put_replaces_whatever_was_there_and_keeps_its_bytes_type_and_extra_headers():
    event = put(b' {"a": 1.0,"a":2} ', "Application/JSON ; charset=utf-8", (("Content-Language", "de"),))
    wanted = present("Application/JSON ; charset=utf-8", b' {"a": 1.0,"a":2} ', (("Content-Language", "de"),))
    for before in (None, DELETED, UNKNOWN, state_after(put(b"x", "text/plain", GZIP))):
        assert apply(before, event) == wanted


def test_a_put_without_type_and_body_is_there():
    assert state_after(put(b"", None)) == present(None, b"")


def test_a_delete_removes_whatever_was_there_and_what_never_was():
    for before in (None, DELETED, UNKNOWN, state_after(put(b"{}"))):
        assert apply(before, DELETE) is DELETED
    assert Entity(Kind.DELETED, "", None, b"") == DELETED


def test_a_post_leaves_the_very_same_entity():
    for before in (None, DELETED, UNKNOWN, state_after(put(b"{}"))):
        assert apply(before, POST) is before


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/vnd.example+json",
        "application/ld+JSON ;profile=x",
        "text/json",
    ],
)
@pytest.mark.parametrize(
    ("patch_type", "body"), [(MERGE, b'{"b":1.10}'), (OPERATIONS, ADD)], ids=["merge patch", "json patch"]
)
def test_a_patch_of_a_json_entity_keeps_its_type_and_drops_its_extra_headers(content_type, patch_type, body):
    entity = state_after(
        put(b'{ "z" : 1e400, "a" : [ ] }', content_type, (("Content-Language", "de"),)),
        patch(body, patch_type),
    )
    assert entity == present(content_type, b'{"a":[],"b":1.10,"z":1e400}')


@pytest.mark.parametrize("patch_type", [f"{MERGE};charset=utf-8", "APPLICATION/Merge-Patch+JSON ; x=y"])
def test_parameters_and_case_of_the_patch_type_do_not_matter(patch_type):
    assert state_after(put(b"{}"), patch(b'{"b":1}', patch_type)).body == b'{"b":1}'


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"b":{"c":null,"d":1}}', b'{"b":{"d":1}}'),
        (b"{}", b"{}"),
        (b"[1.10]", b"[1.10]"),
        (b"null", b"null"),
    ],
)
def test_a_merge_patch_where_nothing_is_starts_from_nothing(body, wanted):
    for before in ((), (DELETE,), (put(b'{"old":1}'), DELETE)):
        assert state_after(*before, patch(body)) == present("application/json", wanted)


def test_a_json_patch_where_nothing_is_makes_the_entity_unknown():
    whole = b'[{"op":"add","path":"","value":{}}]'
    assert state_after(patch(whole, OPERATIONS)) is UNKNOWN
    assert state_after(DELETE, patch(whole, OPERATIONS)) is UNKNOWN


@pytest.mark.parametrize(
    ("before", "event"),
    [
        (put(b"{}"), patch(b"{}", "text/plain")),
        (put(b"{}"), patch(b"{}", "application/json")),
        (put(b"{}"), patch(b"{}", None)),
        (put(b"{}"), patch(b"{}", "application/merge-patch+json-seq")),
        (put(b"{}"), patch(b"{", MERGE)),
        (put(b"{}"), patch(b"", MERGE)),
        (put(b"{}"), patch(b'{"a":1,"a":1}', MERGE)),
        (put(b"{}"), patch(b'{"a":"\\ud800"}', MERGE)),
        (put(b"{}"), patch(b'\xef\xbb\xbf{"a":1}', MERGE)),
        (put(b"{}"), patch(b"{}", OPERATIONS)),
        (put(b"{}"), patch(b'[{"op":"remove","path":"/b"}]', OPERATIONS)),
        (put(b"{}"), patch(b"{}", MERGE, GZIP)),
        (put(b"{}"), patch(b"{}", MERGE, (("content-encoding", "br"),))),
        (put(b"{}", extra_headers=GZIP), patch(b"{}", MERGE)),
        (put(b"{}", "application/jsonp"), patch(b"{}", MERGE)),
        (put(b"{}", "text/plain"), patch(b"{}", MERGE)),
        (put(b"{}", None), patch(b"{}", MERGE)),
        (put(b"{", "application/json"), patch(b"{}", MERGE)),
        (put(b'{"a":1,"a":2}'), patch(b"{}", MERGE)),
        (put('{"a":1}'.encode("utf-16")), patch(b"{}", MERGE)),
        (put(b"[" * 100_000), patch(b"{}", MERGE)),
        (put(b"[]"), patch(b"[" * 100_000, MERGE)),
    ],
)
def test_a_patch_that_cannot_be_applied_makes_the_entity_unknown(before, event):
    assert state_after(before, event) is UNKNOWN


def test_an_unknown_patch_makes_even_a_target_never_seen_unknown():
    assert state_after(patch(b"x", "text/plain")) is UNKNOWN
    assert state_after(DELETE, patch(b"{", MERGE)) is UNKNOWN


@pytest.mark.parametrize(
    "event", [patch(b"{}"), patch(b"null"), patch(b"[]", OPERATIONS), patch(b"", "text/plain")]
)
def test_an_unknown_entity_stays_unknown_under_patches(event):
    assert apply(UNKNOWN, event) is UNKNOWN


def test_a_put_and_a_delete_end_the_unknown():
    assert apply(UNKNOWN, put(b"{}")) == present("application/json", b"{}")
    assert apply(UNKNOWN, DELETE) is DELETED


def test_patches_one_after_the_other_keep_every_digit():
    entity = state_after(
        put(b'{"price":1.10,"big":9223372036854775808}'),
        patch(b'{"more":0.1000000000000000055}'),
        patch(
            b'[{"op":"test","path":"/price","value":1.1},{"op":"copy","from":"/more","path":"/again"}]',
            OPERATIONS,
        ),
        patch(b'{"zero":-0}'),
    )
    assert entity.body == (
        b'{"again":0.1000000000000000055,"big":9223372036854775808,"more":0.1000000000000000055,'
        b'"price":1.10,"zero":-0}'
    )


def test_an_empty_merge_patch_of_an_object_only_rewrites_it():
    assert state_after(put(b'{"b":1, "a":"\\u0041"}'), patch(b"{}")).body == b'{"a":"A","b":1}'


def test_a_patched_body_is_bounded_however_many_patches_made_it():
    large = json.dumps({"a": "x" * (PATCHED_BYTES_MAX - 20)}, separators=(",", ":")).encode()
    assert state_after(put(large), patch(b'{"b":1}')).kind is Kind.PRESENT
    assert state_after(put(large), patch(b'{"b":"%s"}' % (b"x" * 20))) is UNKNOWN


def test_the_digest_is_the_sum_of_the_hashes_of_target_and_etag():
    etag = etag_of("text/plain", b"x")
    terms = [
        int(hashlib.sha256(f"{target}\0{tag}".encode()).hexdigest(), 16)
        for target, tag in (("/a", etag), ("/b?q=1", '"unknown"'))
    ]
    digest = Digest().with_change("/a", "", etag).with_change("/b?q=1", "", UNKNOWN.etag)
    assert digest == Digest(2, sum(terms) % 2**256)
    assert digest.hex() == f"{sum(terms) % 2**256:064x}"
    assert term("/a", etag) == terms[0]


def test_the_digest_of_nothing_is_64_zeros():
    assert Digest().hex() == "0" * 64
    assert Digest(1, 1).hex() == "0" * 63 + "1"


def test_what_is_deleted_does_not_count():
    assert Digest().with_change("/a", "", DELETED.etag) == Digest()
    assert Digest().with_change("/a", "", '"x"').with_change("/a", '"x"', DELETED.etag) == Digest()


def test_a_change_to_the_same_etag_gives_the_same_digest():
    digest = Digest().with_change("/a", "", '"x"')
    assert digest.with_change("/a", '"x"', '"x"') == digest


def test_the_total_stays_below_2_to_the_256():
    most = Digest(1, 2**256 - 1)
    assert (most + Digest(1, 1)) == Digest(2, 0)
    assert 0 <= most.with_change("/a", "", '"x"').total < 2**256


targets = st.sampled_from(["/a", "/b", "/c"])
events = st.builds(
    lambda target, event: event._replace(target=target),
    targets,
    st.sampled_from(
        [
            put(b'{"a":1}'),
            put(b"text", "text/plain"),
            DELETE,
            POST,
            patch(b'{"b":2}'),
            patch(ADD, OPERATIONS),
            patch(b"?", "text/plain"),
        ]
    ),
)


def replayed(history):
    entities, digest = {}, Digest()
    for event in history:
        before = entities.get(event.target)
        after = apply(before, event)
        if after is not None:
            entities[event.target] = after
        digest = digest.with_change(event.target, before.etag if before else "", after.etag if after else "")
    return entities, digest


@given(st.lists(events, max_size=30))
def test_the_digest_kept_event_by_event_is_the_one_of_the_entities_at_the_end(history):
    entities, digest = replayed(history)
    whole = Digest()
    for target, entity in reversed(entities.items()):
        whole = whole.with_change(target, "", entity.etag)
    assert digest == whole
    assert digest.entities == sum(entity.kind is not Kind.DELETED for entity in entities.values())


@given(st.lists(events, max_size=20), st.lists(events, max_size=20))
def test_digests_of_partitions_add_up_in_any_order(one, other):
    first, second = replayed(one)[1], replayed(other)[1]
    assert first + second == second + first
    assert (first + second).entities == first.entities + second.entities
    assert first + Digest() == first


@given(st.lists(events, max_size=20))
def test_every_etag_can_be_computed_again_from_what_is_kept(history):
    for entity in replayed(history)[0].values():
        match entity.kind:
            case Kind.PRESENT:
                assert entity.etag == etag_of(entity.content_type, entity.body)
            case Kind.DELETED:
                assert entity == DELETED
            case Kind.UNKNOWN:
                assert entity == UNKNOWN
