"""Events, feeds and documents for tests."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.event import Event, Method
from gateway.core.identity import FeedName
from gateway.core.pages import Batch, FeedSettings, LogPosition, Page, Paginator

TIME_MS = 1_700_000_000_000


def event(number: int, *, body: bytes | None = None, method: Method = Method.PUT) -> Event:
    """An event that can be told from others."""
    text = b'{"number":%d}' % number if body is None else body
    return Event(method, f"/things/{number}", "application/json", text, TIME_MS + number * 1000)


def offset(number: int) -> str:
    return f"{number:020d}"


def settings(
    *, partition: str = "0", events_max: int = 3, bytes_max: int = 1 << 18, salt: str = ""
) -> FeedSettings:
    return FeedSettings(FeedName("example.org", "things", partition), events_max, bytes_max, salt)


def batch_of(paginator: Paginator, numbers: range) -> Batch:
    """A batch with the events of those numbers."""
    for number in numbers:
        paginator.add(event(number), offset(number))
    return replace(paginator.take(), position=LogPosition(offset(numbers[-1]), "0" * 64))


def documents(paginator: Paginator) -> tuple[list[Page], list[bytes]]:
    """The pages that a paginator has written, and the bytes of each."""
    pages: dict[int, Page] = {}
    data: dict[int, bytes] = {}
    for write in paginator.take().writes:
        pages[write.page.number] = write.page
        data[write.page.number] = data.get(write.page.number, b"") + write.data
    return list(pages.values()), list(data.values())


def batch_with(paginator: Paginator, *events: Event) -> Batch:
    """A batch with those events, behind what the paginator has."""
    for made in events:
        page = paginator.page
        number = 0 if page is None else page.next_ordinal
        paginator.add(made, offset(number))
    return paginator.take()
