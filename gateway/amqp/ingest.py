"""Ingest: from a partition of the log into its feed, each event once, in order, durable before it is settled.

Theory of operation. Messages are mapped and rendered as they arrive, in the event loop. What has gathered is
committed in a thread, one batch at a time; while that runs, the next batch gathers, so batches grow with
the load. After the commit the batch is visible, reported and settled, in this order.

Whatever goes wrong ends the attachment: nothing unsettled is acknowledged, the store returns to what is
verified on disk if it was the store that failed, and a fresh connection starts at the last stored message.
That one comes again, which proves that the log is the one that the feed was made from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from gateway.core.errors import (
    DecodeError,
    ForeignLog,
    GatewayError,
    LogUnavailable,
    MessageRefused,
    PageDamaged,
    StoreFailed,
    UnmappableMessage,
)
from gateway.core.event import Event, Method
from gateway.core.identity import ContentID
from gateway.core.mapping import Mapping, log_time
from gateway.core.message import Message
from gateway.core.pages import Batch, LogPosition, Page, Paginator, Quarantined
from gateway.storage.contract import FeedWriter

from .backoff import Backoff
from .client import Broker, Client
from .consumer import Consumer, read_info
from .dialects.event_streams import offset_and_time
from .endpoints import AmqpDelivery, Outcome
from .fingerprint import fingerprint
from .repair import IDLE_S, repair_page
from .sections import decode_message, leading_offset_and_time, strip_delivery_annotations
from .visibility import Visibility

BATCH_EVENTS_MAX = 5_000
BATCH_BYTES_MAX = 16 * 1024 * 1024
BATCH_EVENTS_GOOD = 32
"""With fewer than this, a batch right behind another waits GATHER_S for more."""
GATHER_S = 0.0003
CATCH_UP_GATHER_S = 0.005
"""The same for a feed that lacks what the log had before: nobody waits for one of these events."""
STAGED_EVENTS_MAX = 256
STAGED_BYTES_MAX = 512 * 1024
"""Of a batch that is staged in the event loop; a larger one is written in the thread as a whole."""

_log = logging.getLogger("wes.ingest")


class _Report(NamedTuple):
    """What a publisher waits to hear: the identity of its event, or why it has none."""

    message_id: str
    outcome: ContentID | GatewayError


class Ingest:
    """Feeds one partition; `run` goes on until `stop` is called.

    `changed` is called in the event loop after each commit.
    """

    def __init__(
        self,
        broker: Broker,
        store: FeedWriter,
        mapping: Mapping,
        visibility: Visibility,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._store = store
        self._map = mapping
        self._visibility = visibility
        self._changed = changed
        self._name = store.settings.name
        self._facts = {"log": self._name.log, "partition": self._name.partition}
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._trouble: str | None = "not attached yet"
        self._storing = True
        """False from a failure of the store to the next commit, which proves that there is room again."""
        self._catch_up_to: str | None = None
        """The last message of the log when it was attached; state before it is not the log's."""
        self._consumer: Consumer | None = None
        self._committing: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[GatewayError]
        self._begin()

    @property
    def trouble(self) -> str | None:
        """Why events do not flow into this feed now, or None."""
        if self._trouble is None:
            return None
        return f"log {self._name.log}, partition {self._name.partition}: {self._trouble}"

    @property
    def behind(self) -> bool:
        """Whether the feed lacks messages that the log had when this was attached, or is not attached."""
        if self._trouble is not None:
            return True
        latest, position = self._catch_up_to, self._position
        return latest is not None and (position is None or position.offset < latest)

    def stop(self) -> None:
        """Take no more messages; `run` returns when what was taken is committed and settled."""
        self._stop.set()

    async def run(self) -> None:
        """Attach, and attach again whatever happens, until stopped."""
        backoff = Backoff()
        store_failed = False
        while not self._stop.is_set():
            try:
                if store_failed:
                    await asyncio.to_thread(self._store.recover)
                    store_failed = False
                await self._attachment(backoff)
            except GatewayError as error:
                store_failed = isinstance(error, StoreFailed)
                self._storing = self._storing and not store_failed
                self._trouble = str(error)
                _log.warning("ingest_interrupted", extra=self._facts | {"reason": str(error)})
            if not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next_s()):
                        await self._stop.wait()

    async def _attachment(self, backoff: Backoff) -> None:
        """One attachment from beginning to end; raises the GatewayError that ended it, if one did."""
        damaged = self._damaged_head()
        if damaged is not None:
            await repair_page(self._broker, self._store, damaged, self._map)
        self._begin()
        client = await Client.connect(self._broker, f"wes-{self._name.log}-{self._name.partition}")
        try:
            await self._check_log(client)
            consumer = Consumer(client, self._name.log, self._name.partition, self)
            await consumer.start(None if self._position is None else self._position.offset)
            self._consumer = consumer
            if self._storing:
                self._trouble = None
                backoff.reset()
            _log.info("ingest_attached", extra=self._facts | {"offset": self._offset()})
            await self._until_over(consumer)
        finally:
            self._consumer = None
            if self._committing is not None:
                await self._committing
            if self._stop.is_set() and not client.lost.done():
                await client.close()
            else:
                client.abort()

    async def _until_over(self, consumer: Consumer) -> None:
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            over = stop, consumer.ended, self._failed
            while not any(one.done() for one in over):
                await asyncio.wait(over, timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
                damaged = self._damaged_head()
                if damaged is not None and not damaged.sealed and not self._failed.done():
                    base = self._store.settings.links.base
                    raise PageDamaged(damaged.number, base, "it must be repaired first")
        finally:
            stop.cancel()
        if self._failed.done():
            raise self._failed.result()
        if not self._stop.is_set():
            raise LogUnavailable(await consumer.ended)

    def _damaged_head(self) -> Page | None:
        """The last page, if it is damaged: nothing can follow it before its repair."""
        head = self._store.head.page
        return head if head is not None and head in self._store.damaged_pages() else None

    async def _check_log(self, client: Client) -> None:
        """A log that ends before our last message is not the one that it came from."""
        partition = self._name.partition
        infos = {info.partition: info for info in await read_info(client, self._name.log)}
        if partition not in infos:
            raise LogUnavailable(f"the log has no partition {partition}: it has {sorted(infos)}")
        latest = infos[partition].latest_offset
        if self._position is not None and (latest is None or latest < self._position.offset):
            raise ForeignLog(
                f"the log ends at offset {latest}, but the feed holds events up to"
                f" {self._position.offset}: it was made from another log. Bring that log back, or"
                " use another --data folder, which fills from this one"
            )
        self._catch_up_to = latest
        if latest is None or (self._position is not None and latest == self._position.offset):
            # The batch that the store failed on is not in the log any more: nothing will prove the store.
            self._storing = True

    def _offset(self) -> str:
        return "@earliest" if self._position is None else self._position.offset

    def _begin(self) -> None:
        """Start from what is committed; whatever was gathered and not committed is forgotten."""
        head = self._store.head
        self._failed = self._loop.create_future()
        self._paginator = Paginator(self._store.settings, head.page, head.data)
        self._position = head.position
        self._received = None if head.position is None else head.position.offset
        self._gap_before = None if head.position is None else head.position.gap_before
        self._resuming = head.position is not None
        self._clear()

    def _clear(self) -> None:
        self._deliveries: list[AmqpDelivery] = []
        self._quarantined: list[Quarantined] = []
        self._reports: list[_Report] = []
        self._bytes = 0
        self._last: tuple[str, bytes] | None = None

    # Receiver

    def full(self) -> bool:
        return (
            len(self._deliveries) >= BATCH_EVENTS_MAX
            or self._bytes >= BATCH_BYTES_MAX
            or self._failed.done()
            or self._stop.is_set()
        )

    def receive(self, data: bytes, delivery: AmqpDelivery) -> None:
        message: Message | None = None
        problem: GatewayError | None = None
        offset: str | None
        # One that was published here needs no decoding: it comes back as it was sent.
        sent = self._visibility.sent(data)
        leading = None if sent is None else leading_offset_and_time(data)
        try:
            if sent is None or leading is None:
                sent, message = None, decode_message(data)
                offset, time_ms = offset_and_time(message.delivery_annotations)
            else:
                offset, time_ms = leading
        except DecodeError as error:
            problem = error
            offset, time_ms = _salvage(data)
        if offset is not None:
            if self._is_old(offset, data):
                delivery.settle(Outcome.ACCEPTED)
                return
            self._received, self._last = offset, (offset, data)
        event: Event | None = None
        if problem is None:
            if sent is not None:
                event = sent.event._replace(modified_ms=log_time(time_ms))
            elif message is not None:
                try:
                    event = self._map(message, time_ms)
                except UnmappableMessage as error:
                    problem = error
        message_id: object = None
        if sent is not None:
            message_id = sent.message_id
        elif message is not None and message.properties is not None:
            message_id = message.properties.message_id
        if event is not None and offset is not None:
            self._add(event, offset, message_id)
        else:
            # One that does not tell where it stands is noted as behind the one before it.
            place = self._received or ""
            self._set_aside(Quarantined(place, time_ms, str(problem), data), message_id)
        self._bytes += len(data)
        self._deliveries.append(delivery)

    def received_all(self) -> None:
        if self._committing is None and self._deliveries and not self._failed.done():
            self._committing = self._loop.create_task(self._commit())

    def _is_old(self, offset: str, data: bytes) -> bool:
        """Whether a message came before; also proves, once, that the log is the same and complete."""
        last = self._received
        resuming, self._resuming = self._resuming, False
        if last is None or (offset > last and not resuming):
            return False
        if resuming and self._position is not None:
            if offset > self._position.offset:
                self._gap_before = self._position.offset
                _log.error("gap", extra=self._facts | {"offset_before": last, "offset_after": offset})
                return False
            if offset == self._position.offset and fingerprint(data) != self._position.sha256:
                self._fail(
                    ForeignLog(
                        f"the log holds another message at offset {offset} than the feed was made from:"
                        " bring back the old log, or use another --data folder, which fills from this one"
                    )
                )
        return True

    def _add(self, event: Event, offset: str, message_id: object) -> None:
        ordinal = self._paginator.add(event, offset, offset_before_gap=self._gap_before)
        self._gap_before = None
        if self._visibility.expects(message_id):
            page = self._paginator.page
            assert page is not None, "an event was just added to it"
            name = self._name
            identity = ContentID(ordinal, page.generation, name.partition, name.log, name.authority)
            self._reports.append(_Report(message_id, identity))

    def _set_aside(self, item: Quarantined, message_id: object) -> None:
        self._quarantined.append(item)
        _log.warning(
            "message_quarantined",
            extra=self._facts | {"offset": item.offset, "reason": item.reason},
        )
        if self._visibility.expects(message_id):
            error = MessageRefused(f"the event went to the quarantine: {item.reason}")
            self._reports.append(_Report(message_id, error))

    async def _commit(self) -> None:
        """Commit what has gathered, again and again until nothing has."""
        try:
            while self._deliveries and not self._failed.done():
                batch = self._take_batch()
                deliveries, reports, batch_bytes = self._deliveries, self._reports, self._bytes
                self._clear()
                if _is_light(batch, batch_bytes):
                    # Written in the loop, a small batch needs its thread for the disk alone: each change
                    # between threads costs about as much as such a write.
                    self._store.stage(batch)
                    await self._loop.run_in_executor(None, self._store.commit)
                else:
                    await self._loop.run_in_executor(None, self._store.append, batch)
                self._position = batch.position or self._position
                if not self._storing:
                    self._storing, self._trouble = True, None
                    _log.info("store_recovered", extra=self._facts)
                self._changed()
                for message_id, outcome in reports:
                    self._visibility.resolve(message_id, outcome)
                for delivery in deliveries:
                    delivery.settle(Outcome.ACCEPTED)
                if self._consumer is not None:
                    self._consumer.proceed()
                if self.behind:
                    await asyncio.sleep(CATCH_UP_GATHER_S)
                elif len(self._deliveries) < BATCH_EVENTS_GOOD:
                    # Right behind one commit, a moment's wait makes one more of several.
                    await asyncio.sleep(GATHER_S)
        except GatewayError as error:
            self._fail(error)
        except Exception as error:
            # Whatever went wrong, the feed must not stand still without a word.
            _log.exception("commit_failed", extra=self._facts)
            self._fail(StoreFailed(f"a commit failed: {error!r}; the log has it again"))
        finally:
            self._committing = None

    def _take_batch(self) -> Batch:
        position = None
        if self._last is not None:
            offset, data = self._last
            position = LogPosition(offset, fingerprint(data), self._gap_before)
        return replace(self._paginator.take(), quarantined=tuple(self._quarantined), position=position)

    def _fail(self, error: GatewayError) -> None:
        if not self._failed.done():
            self._failed.set_result(error)


def _is_light(batch: Batch, size: int) -> bool:
    """Whether it takes no time worth mentioning to stage a batch; a patch may be of a large entity."""
    return (
        size <= STAGED_BYTES_MAX
        and len(batch.changes) <= STAGED_EVENTS_MAX
        and all(change.event.method is not Method.PATCH for change in batch.changes)
    )


def _salvage(data: bytes) -> tuple[str | None, int | None]:
    """Where an undecodable message stands in its partition, if it tells at least that."""
    try:
        return offset_and_time(strip_delivery_annotations(data)[2])
    except DecodeError:
        return None, None
