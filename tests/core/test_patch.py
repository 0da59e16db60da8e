"""Patches do what their RFCs say, all or nothing, leave their input alone, and are bounded."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.jsontext import NESTING_MAX, NotJson, Number, canonical, parse
from gateway.core.patch import OPERATIONS_MAX, PATCHED_BYTES_MAX, PatchFailed, json_patch, merge_patch
from tests.sync.replay import merged


def value_of(text):
    return parse(text.encode())


def patched(target, *operations):
    return json_patch(value_of(target), value_of(f"[{','.join(operations)}]"))


def at(name, path, **members):
    return json.dumps({"op": name, "path": path, **members})


RFC_7396_APPENDIX_A = [
    ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
    ('{"a":"b"}', '{"a":null}', "{}"),
    ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
    ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
    ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
    ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
    ('["a","b"]', '["c","d"]', '["c","d"]'),
    ('{"a":"b"}', '["c"]', '["c"]'),
    ('{"a":"foo"}', "null", "null"),
    ('{"a":"foo"}', '"bar"', '"bar"'),
    ('{"e":null}', '{"a":1}', '{"a":1,"e":null}'),
    ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
    ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
]


@pytest.mark.parametrize(("target", "patch", "wanted"), RFC_7396_APPENDIX_A)
def test_the_merge_patches_of_rfc_7396_appendix_a(target, patch, wanted):
    assert canonical(merge_patch(value_of(target), value_of(patch))) == wanted.encode()


def test_the_merge_patches_of_rfc_7396_sections_1_and_3():
    first = merge_patch(value_of('{"a":"b","c":{"d":"e","f":"g"}}'), value_of('{"a":"z","c":{"f":null}}'))
    assert canonical(first) == b'{"a":"z","c":{"d":"e"}}'
    target = """{
        "title": "Goodbye!", "author": {"givenName": "John", "familyName": "Doe"},
        "tags": ["example", "sample"], "content": "This will be unchanged"
    }"""
    patch = """{
        "title": "Hello!", "phoneNumber": "+01-123-456-7890", "author": {"familyName": null},
        "tags": ["example"]
    }"""
    assert merge_patch(value_of(target), value_of(patch)) == {
        "title": "Hello!",
        "author": {"givenName": "John"},
        "tags": ["example"],
        "content": "This will be unchanged",
        "phoneNumber": "+01-123-456-7890",
    }


RFC_6902_APPENDIX_A = {
    "A.1 adding an object member": (
        '{"foo":"bar"}',
        '[{"op":"add","path":"/baz","value":"qux"}]',
        '{"baz":"qux","foo":"bar"}',
    ),
    "A.2 adding an array element": (
        '{"foo":["bar","baz"]}',
        '[{"op":"add","path":"/foo/1","value":"qux"}]',
        '{"foo":["bar","qux","baz"]}',
    ),
    "A.3 removing an object member": (
        '{"baz":"qux","foo":"bar"}',
        '[{"op":"remove","path":"/baz"}]',
        '{"foo":"bar"}',
    ),
    "A.4 removing an array element": (
        '{"foo":["bar","qux","baz"]}',
        '[{"op":"remove","path":"/foo/1"}]',
        '{"foo":["bar","baz"]}',
    ),
    "A.5 replacing a value": (
        '{"baz":"qux","foo":"bar"}',
        '[{"op":"replace","path":"/baz","value":"boo"}]',
        '{"baz":"boo","foo":"bar"}',
    ),
    "A.6 moving a value": (
        '{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}',
        '[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]',
        '{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}',
    ),
    "A.7 moving an array element": (
        '{"foo":["all","grass","cows","eat"]}',
        '[{"op":"move","from":"/foo/1","path":"/foo/3"}]',
        '{"foo":["all","cows","eat","grass"]}',
    ),
    "A.8 testing a value, success": (
        '{"baz":"qux","foo":["a",2,"c"]}',
        '[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]',
        '{"baz":"qux","foo":["a",2,"c"]}',
    ),
    "A.9 testing a value, error": (
        '{"baz":"qux"}',
        '[{"op":"test","path":"/baz","value":"bar"}]',
        None,
    ),
    "A.10 adding a nested member object": (
        '{"foo":"bar"}',
        '[{"op":"add","path":"/child","value":{"grandchild":{}}}]',
        '{"child":{"grandchild":{}},"foo":"bar"}',
    ),
    "A.11 ignoring unrecognised elements": (
        '{"foo":"bar"}',
        '[{"op":"add","path":"/baz","value":"qux","xyz":123}]',
        '{"baz":"qux","foo":"bar"}',
    ),
    "A.12 adding to a target that does not exist": (
        '{"foo":"bar"}',
        '[{"op":"add","path":"/baz/bat","value":"qux"}]',
        None,
    ),
    "A.14 ~ escape ordering": (
        '{"/":9,"~1":10}',
        '[{"op":"test","path":"/~01","value":10}]',
        '{"/":9,"~1":10}',
    ),
    "A.15 comparing strings and numbers": (
        '{"/":9,"~1":10}',
        '[{"op":"test","path":"/~01","value":"10"}]',
        None,
    ),
    "A.16 adding an array value": (
        '{"foo":["bar"]}',
        '[{"op":"add","path":"/foo/-","value":["abc","def"]}]',
        '{"foo":["bar",["abc","def"]]}',
    ),
}


@pytest.mark.parametrize("name", RFC_6902_APPENDIX_A)
def test_the_json_patches_of_rfc_6902_appendix_a(name):
    target, patch, wanted = RFC_6902_APPENDIX_A[name]
    if wanted is None:
        with pytest.raises(PatchFailed, match="operation 0"):
            json_patch(value_of(target), value_of(patch))
    else:
        assert canonical(json_patch(value_of(target), value_of(patch))) == wanted.encode()


def test_rfc_6902_a_13_an_operation_with_two_ops_is_not_read_at_all():
    with pytest.raises(NotJson, match="'op' occurs twice"):
        value_of('[{"op":"add","path":"/baz","value":"qux","op":"remove"}]')


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_the_pointers_of_rfc_6901_section_5(pointer, value):
    document = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5}
    document |= {'k"l': 6, " ": 7, "m~n": 8}
    text = json.dumps(document)
    assert patched(text, at("test", pointer, value=value), at("test", "", value=document)) == value_of(text)


@pytest.mark.parametrize(
    ("target", "operations", "wanted"),
    [
        ("[]", [at("add", "/0", value=1)], "[1]"),
        ("[1]", [at("add", "/1", value=2)], "[1,2]"),
        ('{"a":1}', [at("add", "/a", value=2)], '{"a":2}'),
        ('{"-":1,"01":2}', [at("remove", "/-"), at("remove", "/01")], "{}"),
        ("1", [at("add", "", value=[])], "[]"),
        ("1", [at("replace", "", value={})], "{}"),
        ("1", [at("remove", ""), at("add", "", value=2)], "2"),
        ('{"a":{"b":1}}', [at("move", "", **{"from": "/a"})], '{"b":1}'),
        ('{"a":{"b":1}}', [at("copy", "", **{"from": "/a/b"})], "1"),
        ('{"a":1}', [at("copy", "/b", **{"from": ""})], '{"a":1,"b":{"a":1}}'),
        ('{"a":1}', [at("move", "/a", **{"from": "/a"})], '{"a":1}'),
        ("[1,2]", [at("move", "/1", **{"from": "/1"})], "[1,2]"),
        ("[1,2]", [at("move", "/-", **{"from": "/0"})], "[2,1]"),
        ('{"a":{},"ab":1}', [at("move", "/ab/c", **{"from": "/a"}), at("add", "/ab", value=1)], None),
        ('{"a":{},"ab":{}}', [at("move", "/ab/c", **{"from": "/a"})], '{"ab":{"c":{}}}'),
        ('{"a":null}', [at("test", "/a", value=None), at("replace", "/a", value=None)], '{"a":null}'),
        (
            "[1.10,1e400]",
            [at("test", "/0", value=1.1), at("copy", "/-", **{"from": "/1"})],
            "[1.10,1e400,1e400]",
        ),
        ("{}", [], "{}"),
    ],
)
def test_operations_at_their_edges(target, operations, wanted):
    if wanted is None:
        with pytest.raises(PatchFailed):
            patched(target, *operations)
    else:
        assert canonical(patched(target, *operations)) == wanted.encode()


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ("1", "it is not an object"),
        ("{}", "path is not there"),
        ('{"path":"/a"}', "op is None"),
        ('{"op":"spend","path":"/a"}', "op is 'spend'"),
        ('{"op":"add","path":1,"value":1}', "path is not there, or no string"),
        ('{"op":"add","path":null,"value":1}', "path is not there"),
        ('{"op":"add","path":"/x"}', "value is not there"),
        ('{"op":"test","path":"/a"}', "value is not there"),
        ('{"op":"replace","path":"/a"}', "value is not there"),
        ('{"op":"move","path":"/x"}', "from is not there"),
        ('{"op":"copy","path":"/x","from":[]}', "from is not there, or no string"),
        (at("add", "a", value=1), "no JSON Pointer"),
        (at("add", "/a~2", value=1), "no JSON Pointer"),
        (at("add", "/a~", value=1), "no JSON Pointer"),
        (at("add", "#/a", value=1), "no JSON Pointer"),
        (at("remove", "/x"), "'/x' does not exist"),
        (at("remove", "/a~1b~0"), "'/a~1b~0' does not exist"),
        (at("replace", "/x", value=1), "'/x' does not exist"),
        (at("test", "/x", value=None), "'/x' does not exist"),
        (at("add", "/x/y", value=1), "'/x' does not exist"),
        (at("add", "/text/0", value=1), "'/text' is no array or object"),
        (at("test", "/text/0", value="t"), "'/text/0' does not exist"),
        (at("remove", "/list/-"), "'/list/-' does not exist"),
        (at("test", "/list/-", value=1), "'/list/-' does not exist"),
        (at("remove", "/list/2"), "'/list/2' does not exist"),
        (at("add", "/list/3", value=1), "'/list/3' does not exist"),
        (at("add", "/list/" + "9" * 5000, value=1), "does not exist"),
        (at("replace", "/list/01", value=1), "'/list/01' does not exist"),
        (at("replace", "/list/-1", value=1), "'/list/-1' does not exist"),
        (at("replace", "/list/+1", value=1), "'/list/\\+1' does not exist"),
        (at("replace", "/list/\u0661", value=1), "does not exist"),
        (at("replace", "/list/1 ", value=1), "'/list/1 ' does not exist"),
        (at("replace", "/list/", value=1), "'/list/' does not exist"),
        (at("move", "/a/b", **{"from": "/a"}), "'/a' cannot be moved into itself"),
        (at("move", "/a", **{"from": ""}), "'' cannot be moved into itself"),
        (at("copy", "/x", **{"from": "/y"}), "'/y' does not exist"),
        (at("test", "/one", value=True), "'/one' has another value"),
    ],
)
def test_an_operation_that_cannot_be_done_says_which_and_where(operation, why):
    target = '{"a":{"b":1},"one":1,"text":"text","list":[1,2]}'
    with pytest.raises(PatchFailed, match=f"operation 1: .*{why}"):
        patched(target, at("add", "/a/c", value=1), operation)


@pytest.mark.parametrize("patch", ["{}", "null", '"add"', "1"])
def test_a_json_patch_is_an_array(patch):
    with pytest.raises(PatchFailed, match="array of operations"):
        json_patch({}, value_of(patch))


def test_a_patch_that_removes_the_document_fails():
    with pytest.raises(PatchFailed):
        patched("{}", at("remove", ""))


def test_copies_and_added_values_live_apart_from_where_they_came_from():
    patch = [
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "add", "path": "/a/x", "value": Number("1")},
        {"op": "add", "path": "/c", "value": {"y": []}},
        {"op": "add", "path": "/c/y/-", "value": Number("2")},
        {"op": "move", "from": "/c/y", "path": "/b/y"},
        {"op": "add", "path": "/b/y/-", "value": Number("3")},
    ]
    before = copy.deepcopy(patch)
    assert canonical(json_patch({"a": {}}, patch)) == b'{"a":{"x":1},"b":{"y":[2,3]},"c":{}}'
    assert patch == before


def doubling(times):
    return ",".join(at("copy", f"/{number}", **{"from": ""}) for number in range(times))


def test_repeated_copies_cannot_blow_up_the_document():
    target = json.dumps({"x": "x" * 6_000})
    assert len(canonical(patched(target, doubling(7)))) < PATCHED_BYTES_MAX
    with pytest.raises(PatchFailed, match="operation 7: the patch copies more than"):
        patched(target, doubling(60))


def test_what_a_patch_copies_counts_even_if_it_is_removed_again():
    text = json.dumps({"a": "x" * (PATCHED_BYTES_MAX // 4)})
    again = (at("copy", "/b", **{"from": "/a"}), at("remove", "/b"))
    patched(text, *again * 3)
    with pytest.raises(PatchFailed, match="operation 6: the patch copies more than"):
        patched(text, *again * 4)


def test_the_operations_of_a_patch_are_bounded():
    operation = {"op": "test", "path": "", "value": None}
    assert json_patch(None, [operation] * OPERATIONS_MAX) is None
    with pytest.raises(PatchFailed, match="at most 10000"):
        json_patch(None, [operation] * (OPERATIONS_MAX + 1))


def test_the_tokens_of_a_pointer_are_bounded():
    deepest = "[" * NESTING_MAX + "]" * NESTING_MAX
    inside = "/0" * (NESTING_MAX - 1)
    assert canonical(patched(deepest, at("add", f"{inside}/-", value=1))).count(b"[") == NESTING_MAX
    for operation in (at("test", f"{inside}/0/0", value=1), at("copy", "/-", **{"from": f"{inside}/0/0"})):
        with pytest.raises(PatchFailed, match=r"(path|from) has 257 tokens; at most 256 are allowed"):
            patched(deepest, operation)


def test_a_place_that_is_missing_is_named_as_far_as_the_way_leads():
    for operation in (at("test", "/0/0/1/0/0", value=1), at("add", "/0/0/1/0/0", value=1)):
        with pytest.raises(PatchFailed, match="'/0/0/1' does not exist"):
            patched("[[[[]]]]", operation)


def test_the_nesting_of_the_result_is_bounded_not_that_on_the_way():
    deep = "[" * 200 + "]" * 200
    place = "/a" + "/0" * 100
    into = at("move", place, **{"from": "/b"})
    back = at("move", "/b", **{"from": place})
    target = f'{{"a":{"[" * 101 + "]" * 101},"b":{deep}}}'
    with pytest.raises(PatchFailed, match=f"nested deeper than {NESTING_MAX}"):
        patched(target, into)
    assert canonical(patched(target, into, back)) == target.encode()
    with pytest.raises(PatchFailed, match=r"operation 1: '/a' cannot be copied: .* nested deeper"):
        patched(target, into, at("copy", "/c", **{"from": "/a"}))


values = st.recursive(
    st.none() | st.booleans() | st.sampled_from(["", "text", Number("1"), Number("1.0")]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab01"), inner, max_size=3),
    max_leaves=12,
)
pointers = st.lists(st.sampled_from(["a", "b", "0", "1", "-"]), max_size=3).map(
    lambda tokens: "".join(f"/{token}" for token in tokens)
)
operations = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "add", "remove", "replace", "move", "copy", "copy", "test"]),
        "path": pointers,
        "from": pointers,
        "value": values,
    }
)


@given(values, values)
def test_a_merge_patch_does_what_the_function_of_rfc_7396_does(target, patch):
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == merged(target, patch)
    assert (target, patch) == before


@given(values, st.lists(operations, max_size=6))
def test_a_json_patch_is_its_operations_one_after_the_other_and_leaves_its_input_alone(target, patch):
    before = copy.deepcopy((target, patch))
    try:
        holder = {"": copy.deepcopy(target)}
        for operation in patch:
            perform(holder, operation)
        wanted = holder[""]
    except (LookupError, ValueError):
        with pytest.raises(PatchFailed):
            json_patch(target, patch)
    else:
        assert canonical(json_patch(target, patch)) == canonical(wanted)
    assert (target, patch) == before


def perform(holder, operation):
    """One operation on the document in `holder`, written a second time; raises LookupError or ValueError."""

    def place(pointer, *, new=False):
        *way, last = pointer.split("/")
        node = holder
        for token in way:
            node = node[index(node, token, 0)]
        return node, index(node, last, 1 if new else 0)

    def index(node, token, beyond):
        if isinstance(node, dict):
            return token
        if not isinstance(node, list):
            raise LookupError(token)
        if token == "-" and beyond:
            return len(node)
        if str(int(token)) != token or not 0 <= int(token) < len(node) + beyond:
            raise LookupError(token)
        return int(token)

    def read(pointer):
        node, key = place(pointer)
        return node[key]

    def add(pointer, value):
        node, key = place(pointer, new=True)
        if isinstance(node, dict):
            node[key] = value
        else:
            node.insert(key, value)

    def remove(pointer):
        node, key = place(pointer)
        del node[key]

    name, path, source = operation["op"], operation["path"], operation["from"]
    value = copy.deepcopy(operation["value"])
    if name == "move":
        if path.startswith(f"{source}/"):
            raise ValueError(path)
        value = read(source)
        remove(source)
    if name == "copy":
        value = copy.deepcopy(read(source))
    if name == "test" and not same(read(path), value):
        raise ValueError(path)
    if name in ("remove", "replace"):
        read(path)
        if path or name == "remove":
            remove(path)
    if name in ("add", "replace", "move", "copy"):
        add(path, value)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, Number):
        return float(a) == float(b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return a == b
