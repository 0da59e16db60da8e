"""The fold: state rows and the events behind them become state rows again, in Arrow batches.

The rows of a target come together, in the order of their ordinals. Of most targets only the last row counts,
as PUT and DELETE settle what an entity is; those are found without looking at any other. Where patches are
last, `gateway.core.state` applies them one by one. All decisions are the core's, so that the table says what
the gateway and every copy say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gateway.core.errors import GatewayError
from gateway.core.event import METHODS, Event, Method
from gateway.core.state import DELETED, UNKNOWN, Entity, Kind, apply, etag_of

from .buckets import Bucket

_TEXT = pa.string()
_HEADERS = pa.list_(pa.struct([("name", _TEXT), ("value", _TEXT)]))
_TIME = pa.timestamp("us", tz="UTC")

FOLDED = pa.schema(
    [
        ("partition", _TEXT),
        ("bucket", pa.int32()),
        ("target", _TEXT),
        ("state", _TEXT),
        ("content_type", _TEXT),
        ("etag", _TEXT),
        ("last_modified", _TIME),
        ("ordinal", pa.int64()),
        ("entry", _TEXT),
        ("headers", _HEADERS),
        ("size", pa.int64()),
        ("body", pa.binary()),
    ]
)
FOLDED_SQL = (
    "partition STRING, bucket INT, target STRING, state STRING, content_type STRING, etag STRING,"
    " last_modified TIMESTAMP, ordinal BIGINT, entry STRING,"
    " headers ARRAY<STRUCT<name: STRING, value: STRING>>, size BIGINT, body BINARY"
)
"""The rows of the table `state`: the event that made each target what it is, and what that is.

`state` is present, deleted or unknown. Only what is present has a content type, headers and a body of `size`
bytes; what is deleted has no ETag either, and stays as a row.
"""
UNFOLDED = (
    *("partition", "bucket", "target", "change", "content_type", "etag", "last_modified", "ordinal", "entry"),
    *("headers", "body"),
)
"""The columns to fold: those of `state`, with the method of an event or the state of a row in `change`."""

STATES = {kind.name.lower(): kind for kind in Kind}
_STATE_OF = {Method.PUT.value: "present", Method.DELETE.value: "deleted", **{name: name for name in STATES}}

_Rows: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class RowsMissing(GatewayError):
    """A task did not get the rows that it should: what it made of them must not be used."""

    def __init__(self, bucket: Bucket, *, expected: int, found: int) -> None:
        super().__init__(
            f"of partition {bucket[0]}, bucket {bucket[1]}, a task got {found} rows instead of {expected}:"
            " Spark lost or doubled rows, or another program writes to the tables"
        )


def fold_batches(
    batches: Iterable[pa.RecordBatch], expected: Mapping[Bucket, int]
) -> Iterator[pa.RecordBatch]:
    """State rows of all targets in `batches`, which have UNFOLDED columns.

    The rows of a target in a partition come one behind the other, by their ordinals.

    Raises RowsMissing at the end unless each bucket had as many rows as `expected` says, those of what was
    deleted left out, and none besides: an iterator of Spark can end early as if nothing were wrong.
    """
    counted: Counter[Bucket] = Counter()
    open_: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        _count(batch, counted)
        if open_ is not None:
            batch = pa.concat_batches([open_, batch])
        ends = _ends(batch)
        folded = _fold(batch, ends[:-1])
        # More of the last target may come, in any number of rows.
        open_ = _settled(batch, ends)
        if folded.num_rows:
            yield folded
    if open_ is not None:
        yield _fold(open_, np.array([0]))
    for bucket in expected.keys() | counted.keys():
        if counted[bucket] != expected.get(bucket, 0):
            raise RowsMissing(bucket, expected=expected.get(bucket, 0), found=counted[bucket])


def _count(batch: pa.RecordBatch, counted: Counter[Bucket]) -> None:
    columns = ("partition", "bucket")
    counting = batch.filter(pc.not_equal(batch["change"], "deleted")).select(columns)
    grouped = pa.Table.from_batches([counting])
    for row in grouped.group_by(columns).aggregate([([], "count_all")]).to_pylist():
        counted[row["partition"], row["bucket"]] += row["count_all"]


def _ends(batch: pa.RecordBatch) -> _Rows:
    """The indices of the last row of each target."""
    last = batch.num_rows - 1
    target, partition = batch["target"], batch["partition"]
    differs = pc.or_(
        pc.not_equal(target.slice(0, last), target.slice(1)),
        pc.not_equal(partition.slice(0, last), partition.slice(1)),
    )
    return np.append(np.flatnonzero(differs.to_numpy(zero_copy_only=False)), last)


def _fold(batch: pa.RecordBatch, ends: _Rows) -> pa.RecordBatch:
    """The state rows of the targets whose last rows are at `ends`."""
    changes = batch["change"].take(ends).to_pylist()
    states = [_STATE_OF.get(change, "") for change in changes]
    etags = batch["etag"].take(ends).to_pylist()
    patched = [place for place, change in enumerate(changes) if change == Method.PATCH]
    made = _patched(batch, ends, patched)
    for place, entity in zip(patched, made, strict=True):
        states[place], etags[place] = entity.kind.name.lower(), entity.etag
    put = [place for place, change in enumerate(changes) if change == Method.PUT]
    types, bodies = batch["content_type"].take(ends[put]), batch["body"].take(ends[put])
    for place, content_type, body in zip(put, types.to_pylist(), bodies, strict=True):
        etags[place] = etag_of(content_type, body.as_py())
    # `take` gives null for an index that is null. What was made stands behind the rows of the batch.
    absent = np.array([state != "present" for state in states], dtype=bool)
    unlike = absent.copy()
    unlike[patched] = True
    valued = ends.copy()
    valued[patched] = np.arange(len(made)) + batch.num_rows
    rows = pa.array(valued, mask=absent)
    body = _with(batch["body"], [entity.body for entity in made]).take(rows)
    columns = {
        "partition": batch["partition"].take(ends),
        "bucket": batch["bucket"].take(ends),
        "target": batch["target"].take(ends),
        "state": pa.array(states, _TEXT),
        "content_type": _with(batch["content_type"], [entity.content_type for entity in made]).take(rows),
        "etag": pa.array([etag or None for etag in etags], _TEXT),
        "last_modified": batch["last_modified"].take(ends),
        "ordinal": batch["ordinal"].take(ends),
        "entry": batch["entry"].take(ends),
        "headers": batch["headers"].take(pa.array(ends, mask=unlike)),
        "size": pc.fill_null(pc.binary_length(body), 0),
        "body": body,
    }
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in FOLDED], schema=FOLDED
    )


def _with(column: pa.Array, values: list[Any]) -> pa.Array:
    return pa.concat_arrays([column, pa.array(values, column.type)]) if values else column


def _settled(batch: pa.RecordBatch, ends: _Rows) -> pa.RecordBatch:
    """One row that stands for those of the last target."""
    last = batch.slice(batch.num_rows - 1)
    if last["change"][0].as_py() != Method.PATCH:
        return last
    (entity,) = _patched(batch, ends, [len(ends) - 1])
    row = last.to_pylist()[0] | {
        "change": entity.kind.name.lower(),
        "content_type": entity.content_type,
        "etag": entity.etag,
        "headers": None,
        "body": entity.body,
    }
    return pa.RecordBatch.from_pylist([row], schema=batch.schema)


def _patched(batch: pa.RecordBatch, ends: _Rows, places: list[int]) -> list[Entity]:
    """What the targets at `places` of `ends` are, whose last rows are patches."""
    if not places:
        return []
    settles = pc.not_equal(batch["change"], Method.PATCH.value).to_numpy(zero_copy_only=False)
    rows = np.arange(batch.num_rows)
    last_settled = np.maximum.accumulate(np.where(settles, rows, -1))[ends[places]]
    first = np.append(0, ends[:-1] + 1)[places]
    first = np.maximum(first, last_settled)
    # The rows that count, of all these targets one behind the other.
    lengths = ends[places] - first + 1
    starts = np.cumsum(lengths) - lengths
    wanted = np.repeat(first - starts, lengths) + np.arange(lengths.sum())
    columns = (batch[name].take(wanted) for name in ("change", "target", "content_type", "etag", "headers"))
    changed = zip(*(column.to_pylist() for column in columns), batch["body"].take(wanted), strict=True)
    entities = []
    for length in lengths:
        entity: Entity | None = None
        for _ in range(length):
            entity = _after(entity, *next(changed))
        assert entity is not None, "a patch leaves a state"
        entities.append(entity)
    return entities


def _after(
    entity: Entity | None,
    change: str,
    target: str,
    content_type: str | None,
    etag: str | None,
    headers: list[dict[str, str]] | None,
    body: pa.BinaryScalar,
) -> Entity | None:
    extra = tuple((header["name"], header["value"]) for header in headers or ())
    match STATES.get(change):
        case Kind.PRESENT:
            return Entity(Kind.PRESENT, etag or "", content_type, body.as_py(), extra)
        case Kind.DELETED:
            return DELETED
        case Kind.UNKNOWN:
            return UNKNOWN
        case None:
            event = Event(METHODS[change], target, content_type, body.as_py() or b"", None, extra)
            return apply(entity, event)
