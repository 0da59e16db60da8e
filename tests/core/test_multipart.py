"""Parts of a document are read in every legal form, and in no other."""

import pytest

from gateway.core.errors import DecodeError
from gateway.core.multipart import boundary_of, read_parts

EXTRA = (("Content-Language", "en"), ("X-Other", "a: b"))


@pytest.mark.parametrize(
    "part",
    [
        b"A: 1",
        b"A: 1\nB: 2\r\n\r\n",
        b"A: 1\rB: 2\r\n\r\n",
        b"A: \0\r\n\r\n",
        b"no header\r\n\r\n",
        b"Link\r\n\r\n",
        b" folded: 1\r\n\r\n",
        b"Content-Length: 0\r\ncontent-length: 0\r\n\r\n",
        b"Content-Length: 00\r\n\r\n",
        b"A: 1\r\n" * 65 + b"\r\n",
        b"A: %s\r\n\r\n" % (b"x" * 17_000),
        b"",
    ],
    ids=repr,
)
def test_parts_of_no_legal_form_are_refused(part):
    assert len(read_parts("b", b"--b\r\nA: 1\r\n\r\n\r\n--b--")) == 1
    with pytest.raises(DecodeError):
        read_parts("b", b"--b\r\n" + part + b"\r\n--b--")


@pytest.mark.parametrize(
    "text",
    [
        "multipart/mixed; boundary=\udcff",
        "multipart/mixed; boundary=é\udcff",
        "multipart/mixed; boundary*=é",
        "\udcff; boundary=b",
    ],
    ids=ascii,
)
def test_a_content_type_that_the_standard_library_stumbles_over_is_refused(text):
    with pytest.raises(DecodeError):
        boundary_of(text)


PARTS = (
    b"--b\r\nA: 1\r\nb:2 \r\nFolded: x\r\n  y\r\n\r\nbody\r\n--b \t\r\n\r\nno headers\r\n--b\r\nC: 3\r\n\r\n"
    b"--b\r\nD: 4\r\n\r\n\r\n\r\n--b--\r\nepilogue\r\n--b\r\n"
)


def test_parts_come_in_every_legal_form():
    parts = read_parts("b", PARTS)
    assert [part.body for part in parts] == [b"body", b"no headers", b"", b"\r\n"]
    assert parts[0].headers == (("A", "1"), ("B", "2"), ("Folded", "x  y"))
    assert (parts[1].headers, parts[2].headers) == ((), (("C", "3"),))
