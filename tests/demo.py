"""`make demo`: from an event log over feeds and a snapshot to an exact copy, left running to play with.

Starts `wes serve` with its defaults in the background, unless it is running already, publishes the sample
catalogue, makes a snapshot of it, copies that, goes on with the feed, and compares. The environment
(`WES_LISTEN` and so on) changes the defaults as always.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SAMPLE = sorted((Path(__file__).parent / "data").glob("*.ndjson.gz"))
START_WAIT_S = 60.0
WES = [sys.executable, "-m", "gateway"]


def main() -> int:
    data = Path(os.environ.get("WES_DATA", "wes-data"))
    data.mkdir(exist_ok=True)
    addresses = data / "demo.addresses"
    log = data / "demo.log"
    say("Starting the event log node and the gateway: wes serve")
    urls = running(addresses)
    if urls is None:
        process = start(addresses, log)
        urls = wait_for_addresses(process, addresses, log)
        (data / "demo.pid").write_text(f"{process.pid}\n")
    http, amqp = urls["http"], urls["amqp"]
    wait_ready(http)
    if events(http) == 0:
        say("Publishing the sample of a Debian catalogue over AMQP: wes publish")
        subprocess.run([*WES, "publish", amqp, *map(str, SAMPLE)], check=True)
        expected = sum(count_lines(path) for path in SAMPLE)
        while events(http) < expected:
            time.sleep(0.05)
    say("Publishing one more with PUT, and walking all feeds: wes check")
    show_one_more(http, "/products/1", b'{"name":"foo"}')
    subprocess.run([*WES, "check", http], check=True)
    say("Making a snapshot of what the events add up to, with Spark: wes snapshot build")
    snapshot = last_line("snapshot", "build", "--from", http, "--output", str(data / "snapshots"))
    print(f"snapshot {snapshot['snapshot']}: {snapshot['entities']:,} entities, digest {snapshot['digest']}")
    say("Copying the snapshot, and from the feed what came after it: wes sync --verify")
    show_one_more(http, "/products/3", b'{"name":"bar"}')
    (data / "demo.sqlite").unlink(missing_ok=True)
    copy = last_line("sync", http, str(data / "demo.sqlite"), "--verify")
    told = log_document(http)
    print(
        f"of {events(http):,} events the copy read {copy['events']:,}; all others are in the snapshot\n"
        f"digest of the copy:    {copy['digest']}, {copy['entities']:,} entities\n"
        f"digest of the gateway: {told['digest']}, {told['entities']:,} entities"
    )
    if copy["digest"] != told["digest"]:
        sys.exit("The copy differs from what the gateway has.")
    pid = (data / "demo.pid").read_text().strip()
    print(
        f"""
The gateway is at {http}, the event log node at {amqp}, their data in {data}/.
There are {events(http):,} events in the log `events`. Try:

    curl {http}/feeds/events
    curl {http}/feeds/events/0/latest
    curl {http}/snapshots/events/latest
    curl -i -X PUT {http}/products/1 -H 'Content-Type: application/json' -d '{{"name":"foo"}}'

The README goes on from here. To stop the demo: kill {pid}"""
    )
    return 0


def say(what: str) -> None:
    print(f"== {what}", flush=True)


def start(addresses: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the gateway in a session of its own, so that it outlives this program and its terminal."""
    with addresses.open("wb") as out, log.open("ab") as errors:
        return subprocess.Popen(
            [*WES, "serve", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )


def running(addresses: Path) -> dict[str, str] | None:
    """The addresses of a demo that runs already."""
    urls = read_addresses(addresses)
    try:
        with urllib.request.urlopen(f"{urls['http']}/livez", timeout=5):
            return urls
    except (KeyError, OSError):
        return None


def read_addresses(addresses: Path) -> dict[str, str]:
    if not addresses.exists():
        return {}
    urls = [json.loads(line)["listening"] for line in addresses.read_text().splitlines()]
    return {url.partition(":")[0]: url for url in urls}


def wait_for_addresses(process: subprocess.Popen[bytes], addresses: Path, log: Path) -> dict[str, str]:
    deadline = time.monotonic() + START_WAIT_S
    while time.monotonic() < deadline:
        urls = read_addresses(addresses)
        if {"http", "amqp"} <= urls.keys():
            return urls
        if process.poll() is not None:
            break
        time.sleep(0.05)
    lines = log.read_text("utf-8", "replace").splitlines()
    sys.exit("\n".join(["The gateway did not start:", *lines[-5:]]))


def wait_ready(http: str) -> None:
    deadline = time.monotonic() + START_WAIT_S
    while True:
        try:
            with urllib.request.urlopen(f"{http}/readyz", timeout=5):
                return
        except urllib.error.HTTPError as error:
            if time.monotonic() > deadline:
                sys.exit(f"The gateway does not get ready: {error.read().decode()}")
        time.sleep(0.05)


def log_document(http: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{http}/feeds/events", timeout=30) as response:
        document: dict[str, Any] = json.load(response)
    return document


def events(http: str) -> int:
    return sum(partition["events"] for partition in log_document(http)["partitions"])


def last_line(*arguments: str) -> dict[str, Any]:
    """What a command prints last, as JSON; it must have done what it was told."""
    done = subprocess.run([*WES, *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"wes {' '.join(arguments)} failed with {done.returncode}: {done.stdout}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def count_lines(path: Path) -> int:
    zcat = subprocess.run(["gzip", "-dc", str(path)], capture_output=True, check=True)
    return zcat.stdout.count(b"\n")


def show_one_more(http: str, target: str, body: bytes) -> None:
    request = urllib.request.Request(
        http + target,
        data=body,
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        entry = response.headers["Location"]
        print(f"PUT {target} is event {response.headers['Content-ID']} at {entry}")
    with urllib.request.urlopen(http + entry, timeout=30) as response:
        print(f"{entry} leads to {response.url.removeprefix(http)}")


if __name__ == "__main__":
    sys.exit(main())
