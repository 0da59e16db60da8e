"""A feed document as events: each part read once, and refused where it says something else than a feed may.

Nothing is repaired here. A document that breaks a rule of the draft gives no event at all, because what is
left out or guessed would never be missed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import urljoin

from gateway.core.errors import DecodeError, GatewayError
from gateway.core.event import METHODS, Method
from gateway.core.identity import ContentID, parse_content_id
from gateway.core.links import link_by_relation
from gateway.core.multipart import boundary_of, read_parts

from .feed_walk import PREV
from .fetch import Answer
from .urls import origin_of, path_within

HTTP_EQUIV = "http-equiv"
ORDER_CLAUSE = "draft, The Content-ID header"

_METHODS: dict[str, Method] = {f"{HTTP_EQUIV}={name}": method for name, method in METHODS.items()}
_EVENT_TYPE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)\s*=\s*(?:([^\s\",;]+)|\"([^\"]*)\")")
_ABOUT = '>; rel="about"'
_SELF = '>; rel="self"'


class FeedBroken(GatewayError):
    """A feed says what a feed must not say; nothing of the document was used. `clause` is what it breaks."""

    def __init__(self, url: str, what: str, clause: str) -> None:
        super().__init__(f"{url}: {what} ({clause})")
        self.url = url
        self.clause = clause


class Position(NamedTuple):
    """How far a reader has come: the Content-ID of its last event, and that event's entry link.

    `entry` is as FeedEvent has it; None where the server gives no entry links, so that the way back to the
    event leads over all archive documents behind it.
    """

    content_id: str
    entry: str | None


class FeedEvent(NamedTuple):
    """One event of a feed.

    `method` is None for an Event-Type of another family than http-equiv, or for a method that has no meaning
    here; `event_type` has it as it was sent. `target` and `entry` (the entry link, None without one) are
    paths if they are of the feed's own server, else URLs. `last_modified` is the text of that header.
    `extra_headers` are the headers that no other field tells of. `ordinal` is None on servers other than
    this project's. `document` is the URL of the document that the event was read from.
    """

    method: Method | None
    target: str
    content_type: str | None
    body: bytes
    last_modified: str | None
    extra_headers: tuple[tuple[str, str], ...]
    content_id: str
    entry: str | None
    ordinal: int | None
    document: str
    event_type: str

    @property
    def position(self) -> Position:
        """Where to go on behind this event."""
        return Position(self.content_id, self.entry)


# Without the function that a NamedTuple puts in between, which is felt at a hundred thousand events a second.
_make_event: Callable[[tuple[object, ...]], FeedEvent] = partial(tuple.__new__, FeedEvent)


class Document:
    """A feed document as read.

    `asked` is the URL that led to it, `url` its own; `links` are its relations, as absolute URLs. `first`
    and `last` are the Content-IDs of its ends if they are of this project's form.
    """

    __slots__ = ("asked", "etag", "events", "first", "last", "links", "url")

    def __init__(self, asked: str, answer: Answer, events: list[FeedEvent], first: ContentID | None) -> None:
        self.asked = asked
        self.url = answer.url
        self.etag = answer.headers.get("ETag")
        self.links = feed_links(answer)
        self.events = events
        self.first = first
        self.last = None if first is None else first._replace(ordinal=first.ordinal + len(events) - 1)

    @property
    def names(self) -> tuple[str, str]:
        """The URLs by which other documents may call it."""
        return self.asked, self.url

    def index(self, content_id: str) -> int | None:
        """The index of the event with that Content-ID, or None."""
        for index, event in enumerate(self.events):
            if event.content_id == content_id:
                return index
        return None


def feed_links(answer: Answer) -> dict[str, str]:
    """The relations of a feed document, as absolute URLs."""
    links = answer.relations()
    if PREV not in links and "prev" in links:
        # The draft's own example says so, and its text does not.
        links[PREV] = links["prev"]
    return links


def read_document(asked: str, answer: Answer, origin: str) -> Document:
    """The document in an answer with status 200, 204 or 226; raises FeedBroken.

    204 is an empty feed: a multipart document needs a part (RFC 2046, 5.1.1), so it cannot say that.
    `origin` is the origin of the feed: targets and entry links there are given as paths.
    """
    if answer.status == 204:
        return Document(asked, answer, [], None)
    try:
        parts = read_parts(boundary_of(answer.headers.get("Content-Type", "")), answer.body)
    except DecodeError as error:
        raise FeedBroken(answer.url, str(error), "RFC 2046, 5.1.1") from None
    events = _events(answer.url, parts, origin)
    return Document(asked, answer, events, _check_order(answer.url, events))


def _events(
    url: str, parts: Sequence[tuple[tuple[tuple[str, str], ...], bytes]], origin: str
) -> list[FeedEvent]:
    # Whether a path in this document is a path of the feed's own server.
    own = origin_of(url) == origin
    events: list[FeedEvent] = []
    ours: ContentID | None = None
    ordinal: int | None = None
    wanted = ""
    for headers, body in parts:
        content_id = about = entry = event_type = content_type = last_modified = None
        extra: list[tuple[str, str]] | None = None
        others: list[str] | None = None
        for pair in headers:
            name, value = pair
            # The names come in one spelling, whatever was sent.
            if name == "Link":
                if value[-14:] == _ABOUT and value[:2] == "</" and ">" not in (link := value[1:-14]):
                    about = about or link
                elif value[-13:] == _SELF and value[:2] == "</" and ">" not in (link := value[1:-13]):
                    entry = entry or link
                else:
                    others = [*(others or ()), value]
            elif name == "Content-Id":
                if content_id is not None:
                    raise FeedBroken(url, f"part {len(events)} has two Content-IDs", ORDER_CLAUSE)
                content_id = value
            elif name == "Event-Type":
                event_type = value
            elif name == "Content-Type":
                content_type = value
            elif name == "Last-Modified":
                last_modified = value
            elif name != "Content-Length":
                extra = [*(extra or ()), pair]
        if others is not None:
            about = about or link_by_relation(others, "about")
            entry = entry or link_by_relation(others, "self")
        if about is None or event_type is None or not content_id:
            raise _incomplete(url, len(events), about, event_type)
        if not own or about[:1] != "/" or about[:2] == "//":
            about = at_home(url, about, origin)
        if entry is not None and (not own or entry[:1] != "/" or entry[:2] == "//"):
            entry = at_home(url, entry, origin)
        # The Content-IDs of this project are read once in a document; the others are what must follow.
        if not events:
            ours = parse_content_id(content_id)
            if ours is not None:
                ordinal = ours.ordinal
                wanted = str(ours).partition(".")[2]
        elif ordinal is not None:
            ordinal += 1
            if content_id != f"<{ordinal}.{wanted}":
                raise FeedBroken(
                    url,
                    f"{content_id} follows {events[-1].content_id}, where ordinal {ordinal} must be",
                    ORDER_CLAUSE,
                )
        method = _METHODS.get(event_type)
        if method is None:
            method, event_type = _read_event_type(url, event_type)
        extra_headers = () if extra is None else tuple(extra)
        what = (method, about, content_type, body, last_modified, extra_headers)
        events.append(_make_event((*what, content_id, entry, ordinal, url, event_type)))
    return events


def _check_order(url: str, events: list[FeedEvent]) -> ContentID | None:
    """The Content-ID of the first event if it is of ours; all of them are different."""
    if not events:
        return None
    first = parse_content_id(events[0].content_id)
    # Ordinals that rise by one each are different already.
    if first is None and len({event.content_id for event in events}) != len(events):
        raise FeedBroken(url, "a Content-ID occurs twice", ORDER_CLAUSE)
    return first


def _incomplete(url: str, index: int, about: str | None, event_type: str | None) -> FeedBroken:
    if about is None:
        return FeedBroken(
            url, f'part {index} has no Link with rel="about"', "draft, The Event Target Link Relation"
        )
    if event_type is None:
        return FeedBroken(url, f"part {index} has no Event-Type", "draft, The Event-Type HTTP Header")
    return FeedBroken(url, f"part {index} has no Content-ID", ORDER_CLAUSE)


def _read_event_type(url: str, text: str) -> tuple[Method | None, str]:
    match = _EVENT_TYPE.fullmatch(text)
    if match is None:
        raise FeedBroken(
            url, f"Event-Type: {text[:100]} is not one pair family=name", "draft, The Event-Type HTTP Header"
        )
    family, name = match[1], match[2] or match[3] or ""
    return METHODS.get(name) if family.lower() == HTTP_EQUIV else None, text


def at_home(url: str, link: str, origin: str) -> str:
    """`link` of the document at `url` as a path if it is of the server at `origin`, else as a URL."""
    try:
        link = urljoin(url, link)
    except ValueError:
        return link
    path = path_within(link, origin)
    return link if path is None else path
