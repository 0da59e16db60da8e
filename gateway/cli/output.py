"""What servers say: the addresses they listen on, and one log line for each event that matters."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

# What every LogRecord has; whatever else is on one was given as a fact of the event.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _EventLine(logging.Formatter):
    """`time level event key=value …`; a value with spaces or quotes is written as a JSON string."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        words = [moment.replace("+00:00", "Z"), record.levelname.lower(), record.getMessage()]
        facts = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        words += [f"{key}={_word(value)}" for key, value in facts.items()]
        if record.exc_info:
            words.append(f"traceback={json.dumps(self.formatException(record.exc_info))}")
        return " ".join(words)


def _word(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(mark in text for mark in ' "=\\')
    return text if plain else json.dumps(text, ensure_ascii=False)


def log_to_standard_error() -> None:
    """Write all log records of the process to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_EventLine())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)


def say_listening(url: str, *, as_json: bool) -> None:
    """Print an address that is ready, at once."""
    print(json.dumps({"listening": url}) if as_json else f"listening on {url}", flush=True)
