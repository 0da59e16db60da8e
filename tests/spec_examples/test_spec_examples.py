"""Every file of `spec-examples/` is replayed against a running gateway, and stands in the index."""

import re

import pytest

from tests.snapshot_folder import add_snapshot_of
from tests.spec_examples.examples import FOLDER, Mismatch, files, read, replay

INDEX = FOLDER / "README.md"


@pytest.mark.slow
@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_the_gateway_answers_as_in_the_example(path, start_gateway):
    example = read(path)
    gateway = start_gateway(*example.options, **example.environment)
    compared = replay(example, gateway.http, lambda id_: add_snapshot_of(gateway.data, "events", id_))
    # Counted in another way than the reader does, so that it cannot leave out an exchange.
    assert compared == len(re.findall("^=== response", path.read_text(), re.MULTILINE)) > 0


def test_the_index_names_every_file_once_and_no_other():
    linked = re.findall(r"^\| \[([^]]+)\]\(([^)]+)\) \|", INDEX.read_text(), re.MULTILINE)
    assert all(f"{name}.http" == file for name, file in linked)
    assert sorted(file for _, file in linked) == [path.name for path in files()]


def test_nothing_else_is_in_the_folder():
    assert {path.name for path in FOLDER.iterdir()} == {path.name for path in files()} | {"README.md"}


def test_every_example_says_what_it_is_about():
    for path in files():
        lines = path.read_text().split("\n")
        assert re.fullmatch(r"# [A-Z].*[^.]", lines[0]), path.name
        assert lines[1] == "#", path.name
        assert lines[2].startswith("# "), path.name


def test_a_gateway_that_differs_is_found_out(start_gateway, tmp_path):
    """The page size is not that of the example, so the page does not turn."""
    path = next(path for path in files() if path.stem == "08-page-turns")
    with pytest.raises(Mismatch, match="08-page-turns"):
        replay(read(path), start_gateway().http)
