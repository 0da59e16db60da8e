"""`wes check` as a command: what it prints, for people and for programs, and how it ends."""

import json
from contextlib import ExitStack

import pytest

from gateway.cli import main
from tests.sync.feed_server import LATEST, Feed, served


@pytest.fixture(name="served")
def serve_latest():
    """Serve a feed from a thread of its own; returns its URL."""
    with ExitStack() as servers:
        yield lambda feed: servers.enter_context(served(feed)) + LATEST


def broken_feed(rule_header):
    feed = Feed(30, 2)
    for entry in feed.pages[0]:
        entry.without(rule_header)
    return feed


def test_a_clean_feed_ends_with_0_and_says_what_was_looked_at(served, capsys):
    url = served(Feed(3, 3, 1))
    assert main(["check", url]) == 0
    out, err = capsys.readouterr()
    assert "1 feeds, 3 documents, 7 events; 7 of 7 entry links followed" in out
    assert out.endswith("no breach found\n")
    assert err == ""


def test_a_broken_must_ends_with_1_and_names_its_clause(served, capsys):
    assert main(["check", served(broken_feed("Event-Type"))]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("MUST   event-type-missing: http://")
    assert out[0].endswith("has no Event-Type (draft, The Event-Type HTTP Header)")
    assert sum("has no Event-Type" in line for line in out) == 20, "the rest is only counted"
    assert out[-1] == "MUST   event-type-missing: 30 (draft, The Event-Type HTTP Header)"


def test_every_breach_is_an_object_and_the_summary_is_the_last(served, capsys):
    assert main(["check", served(broken_feed("Event-Type")), "--json"]) == 1
    *breaches, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(breaches) == 30
    assert set(breaches[0]) == {"breach", "clause", "level", "url", "detail"}
    assert breaches[0]["breach"] == "event-type-missing"
    assert (summary["must"], summary["should"]) == (30, 0)
    assert summary["breaches"] == {"event-type-missing": 30}
    assert summary["events"] == 32


def test_a_broken_should_ends_with_1_only_when_asked_to(served, capsys):
    feed = Feed(2)
    feed.twist = lambda request, reply: reply.headers.pop("ETag", None)
    url = served(feed)
    assert main(["check", url]) == 0
    assert "SHOULD etag-missing" in capsys.readouterr().out
    assert main(["check", url, "--strict"]) == 1


def test_the_sample_is_an_option(served, capsys):
    url = served(Feed(100, 1))
    for sample, followed in (("10", range(10, 14)), ("all", (101,))):
        assert main(["check", url, "--json", "--sample", sample]) == 0
        assert json.loads(capsys.readouterr().out)["entry_links_followed"] in followed


def test_what_cannot_be_checked_ends_with_1_and_a_reason(served, capsys):
    url = served(Feed(1))
    assert main(["check", f"{url}/nothing", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "answers 404" in json.loads(out)["error"]
    assert err.startswith("wes check: ")


@pytest.mark.parametrize("url", ["example.org", "amqp://example.org", "http://"])
def test_what_is_no_http_url_is_wrong_usage(url, capsys):
    assert main(["check", url]) == 2


@pytest.mark.parametrize("options", [["--sample", "0"], ["--sample", "x"], ["--parallel", "0"], []])
def test_wrong_options_are_wrong_usage(options):
    with pytest.raises(SystemExit) as ended:
        main(["check", *(["http://x.example.org/", *options] if options else [])])
    assert ended.value.code == 2
