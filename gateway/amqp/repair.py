"""Writing a damaged page again from the log: the same events give the same bytes, and the hash proves it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from gateway.core.errors import (
    DecodeError,
    GatewayError,
    LogUnavailable,
    PageDamaged,
    UnmappableMessage,
)
from gateway.core.mapping import Mapping
from gateway.core.pages import Page, Paginator
from gateway.storage.contract import FeedWriter

from .backoff import Backoff
from .client import Broker, Client
from .consumer import Consumer, read_info
from .dialects.event_streams import offset_and_time
from .endpoints import AmqpDelivery, Outcome
from .sections import decode_message

REPAIR_WAIT_S = 60.0
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 30.0
VERIFY_PAUSE_S = 0.05
IDLE_S = 1.0
"""Between looks for newly sealed pages, and for those that a reader has found damaged."""

_log = logging.getLogger("wes.repair")


class _Rebuild:
    """Receives a page's events until it has them all."""

    def __init__(self, store: FeedWriter, page: Page, mapping: Mapping) -> None:
        self._map = mapping
        self._page = page
        empty = replace(page, events=0, length=0, modified_ms_max=None, sealed=False)
        self._paginator = Paginator(store.settings, empty, b"")
        self._missing = page.events
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def full(self) -> bool:
        return self.done.done()

    def receive(self, data: bytes, delivery: AmqpDelivery) -> None:
        delivery.settle(Outcome.ACCEPTED)
        try:
            message = decode_message(data)
            offset, time_ms = offset_and_time(message.delivery_annotations)
            event = self._map(message, time_ms)
        except (DecodeError, UnmappableMessage):
            return  # It is in the quarantine, not in the page.
        self._paginator.add(event, offset)
        self._missing -= 1
        if self._missing == 0:
            if self._page.sealed:
                self._paginator.seal()
            self.done.set_result(b"".join(write.data for write in self._paginator.take().writes))

    def received_all(self) -> None:
        """Nothing is committed before the page is whole."""


async def repair_page(broker: Broker, store: FeedWriter, page: Page, mapping: Mapping) -> None:
    """Fetch the events of a damaged page and put its bytes back.

    Raises LogUnavailable, PageDamaged if the log no longer holds them, StoreFailed.
    """
    name = store.settings.name
    rebuild = _Rebuild(store, page, mapping)
    client = await Client.connect(broker, f"wes-repair-{name.log}-{name.partition}")
    try:
        await _check_log(client, store, page)
        consumer = Consumer(client, name.log, name.partition, rebuild)
        await consumer.start(page.first_offset)
        await asyncio.wait(
            (rebuild.done, consumer.ended),
            timeout=REPAIR_WAIT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        client.abort()
    if not rebuild.done.done():
        raise LogUnavailable(f"the log did not send the events of page {page.number} again")
    try:
        await asyncio.to_thread(store.replace, page, rebuild.done.result())
    except ValueError:
        raise _not_held(store, page) from None
    facts = {"log": name.log, "partition": name.partition, "page": page.number}
    _log.warning("page_repaired", extra=facts)


async def _check_log(client: Client, store: FeedWriter, page: Page) -> None:
    """Raise PageDamaged if the log cannot hold the page's events, rather than wait for them in vain."""
    name, position = store.settings.name, store.head.position
    assert position is not None, "a feed with a page has taken messages"
    for info in await read_info(client, name.log):
        if info.partition == name.partition:
            earliest, latest = info.earliest_offset, info.latest_offset
            if earliest is None or latest is None:
                raise _not_held(store, page)
            if earliest > page.first_offset or latest < position.offset:
                raise _not_held(store, page)


def _not_held(store: FeedWriter, page: Page) -> PageDamaged:
    links = store.settings.links
    return PageDamaged(page.number, links.base, "the log no longer holds its events")


async def keep_pages_whole(broker: Broker, store: FeedWriter, mapping: Mapping) -> None:
    """Check every sealed page once, slowly, and repair what is damaged; goes on until cancelled."""
    name = store.settings.name
    number = 0
    backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
    while True:
        page = store.page(number)
        if page is not None and page.sealed:
            if not await asyncio.to_thread(store.verify, page):
                facts = {"log": name.log, "partition": name.partition, "page": page.number}
                _log.error("page_damaged", extra=facts)
            number += 1
            await asyncio.sleep(VERIFY_PAUSE_S)
        else:
            await asyncio.sleep(IDLE_S)
        for damaged in store.damaged_pages():
            # The open page is the ingest's, which cannot go on without it.
            if damaged.sealed:
                try:
                    await repair_page(broker, store, damaged, mapping)
                    backoff.reset()
                except GatewayError as error:
                    facts = {"log": name.log, "partition": name.partition, "page": damaged.number}
                    _log.error("page_not_repaired", extra=facts | {"reason": str(error)})
                    await asyncio.sleep(backoff.next_s())
