"""JSON is read without losing a digit, refused where readers could differ, and written in one form."""

import json
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.jsontext import NESTING_MAX, NotJson, Number, canonical, equal, nesting, parse

texts = st.text(st.characters(exclude_categories=["Cs"]))
whole = st.from_regex(r"-?(0|[1-9][0-9]{0,20})", fullmatch=True, alphabet="-0123456789")
numbers = st.builds(
    lambda digits, fraction, exponent: Number(digits + fraction + exponent),
    whole,
    st.just("") | st.from_regex(r"\.[0-9]{1,20}", fullmatch=True, alphabet=".0123456789"),
    st.just("") | st.from_regex(r"[eE][+-]?0{0,2}[0-9]{1,2}", fullmatch=True, alphabet="eE+-0123456789"),
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def rewritten(text):
    return canonical(parse(text if isinstance(text, bytes) else text.encode()))


@pytest.mark.parametrize(
    "literal",
    [
        "1.10",
        "1e400",
        "9223372036854775808",
        "0.1000000000000000055",
        "-0",
        "0",
        "-0.0",
        "1E+2",
        "1e-05",
        "9" * 5000,
        "0." + "1" * 5000,
        "1e" + "9" * 5000,
    ],
)
def test_a_number_keeps_its_literal_text(literal):
    assert rewritten(f' {{ "a" : [ {literal} , {literal}\n] }} ') == f'{{"a":[{literal},{literal}]}}'.encode()
    assert type(parse(literal.encode())) is Number


def test_the_strings_of_rfc_8785_are_written_as_it_says():
    text = (
        r'{"string": "\u20ac$\u000F\u000aA'
        + "'"
        + r'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}'
    )
    wanted = '{"literals":[null,true,false],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    assert rewritten(text) == wanted.encode()


def test_all_controls_are_escaped_in_their_short_form_and_nothing_else_is():
    written = canonical("".join(map(chr, range(0x20))) + '"\\/\x7f\x80\u2028\ufffe\U0001f600')
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
    controls = "".join(short.get(code, f"\\u{code:04x}") for code in range(0x20))
    assert written == f'"{controls}\\"\\\\/\x7f\x80\u2028\ufffe\U0001f600"'.encode()


def test_names_are_sorted_by_utf_16_code_units_as_in_rfc_8785():
    text = r"""{
        "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One", "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis"
    }"""
    assert list(json.loads(rewritten(text)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"b":{},"a":[[],{}],"":""}', '{"":"","a":[[],{}],"b":{}}'),
        ("[]", "[]"),
        ("null", "null"),
        (' "a\\/b" ', '"a/b"'),
        ('["\\u00e9","\\ud83d\\ude00"]', '["é","😀"]'),
    ],
)
def test_a_value_is_written_without_space_and_with_the_fewest_escapes(text, wanted):
    assert rewritten(text) == wanted.encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b" ", "Expecting value"),
        (b"{} {}", r"Extra data \(at byte 3\)"),
        (b'\xef\xbb\xbf{"a":1}', "byte order mark"),
        (b'"\xe9"', r"not UTF-8 \(at byte 1\)"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        ('{"a":1}'.encode("utf-16-le"), "property name"),
        (b'{"a":1,"b":2,"a":1}', "'a' occurs twice"),
        (b'{"a":1,"\\u0061":2}', "'a' occurs twice"),
        (b'[[{"x":{"a":1,"a":1}}]]', "'a' occurs twice"),
        (b'"\\ud800"', r"surrogate pair, which is no character \(at byte 1\)"),
        ('["é\\udc00"]'.encode(), r"surrogate pair, which is no character \(at byte 4\)"),
        (b'"\\ud83d\\ud83d\\ude00"', "surrogate pair"),
        (b'"\\uDE00\\uD83D"', "surrogate pair"),
        (b'"\\ud83d \\ude00"', "surrogate pair"),
        (b'{"\\ud800":1}', "surrogate pair"),
        (b'"\\\\\\ud800"', "surrogate pair"),
        (b"NaN", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[1,]", "Expecting value"),
        (b'{"a":1,}', "property name"),
        (b"01", "Extra data"),
        (b"1.", "Extra data"),
        (b".5", "Expecting value"),
        (b"+1", "Expecting value"),
        (b"-", "Expecting value"),
        ("\u0661".encode(), "Expecting value"),
        ("1\u0661".encode(), "Extra data"),
        (b"1e", "Extra data"),
        (b"'a'", "Expecting value"),
        (b'"a\nb"', "control character"),
        (b'"\\x"', "escape"),
        (b'"\\u12"', "escape"),
        (b'"a', "Unterminated string"),
        (b"[1] // one", "Extra data"),
        ("\u00a0[]".encode(), "Expecting value"),
        (b"\x0c[]", "Expecting value"),
    ],
)
def test_what_is_not_json_or_can_be_understood_in_two_ways_is_refused(text, why):
    with pytest.raises(NotJson, match=why):
        parse(text)


@pytest.mark.parametrize("text", [r'"\\ud800"', r'"\\\\udfff"', r'"\ud83d\ude00\\ud800"', r'"\ud7ff\ue000"'])
def test_what_only_looks_like_half_of_a_surrogate_pair_is_read(text):
    assert parse(text.encode()) == json.loads(text)


def test_noncharacters_are_read_and_kept():
    assert rewritten('"\\uffff\ufdd0"') == '"\uffff\ufdd0"'.encode()


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"]":', "}]")])
def test_the_nesting_is_bounded_and_exactly_so(opening, closing):
    levels = NESTING_MAX // (2 if opening.startswith("[{") else 1)
    deepest = opening * levels + "1" + closing * levels
    assert rewritten(deepest) == deepest.encode()
    assert nesting(parse(deepest.encode())) == NESTING_MAX
    with pytest.raises(NotJson, match="nested deeper than 256"):
        parse(f"[{deepest}]".encode())


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'["\\"",' * 1_000_000,
        b"[]," * 300 + b"[" * 1_000_000,
    ],
)
def test_a_text_that_only_opens_is_refused_at_any_length(text):
    with pytest.raises(NotJson):
        parse(text)


def test_brackets_in_strings_are_not_nesting():
    text = json.dumps(["[" * 1000, '"' + "{[" * 1000, "\\" + "[" * 1000] + [[]] * 1000).encode()
    assert len(parse(text)) == 1003


def test_the_stack_of_the_caller_decides_nothing():
    text = b"[" * NESTING_MAX + b"]" * NESTING_MAX

    def deeper(levels):
        return deeper(levels - 1) if levels else rewritten(text)

    assert deeper(400) == text


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("1.10", "1.1"),
        ("1e400", "10e399"),
        ("-0", "0"),
        ("-0.0e5", "0e-9"),
        ("100", "1E+2"),
        ("0.001", "1e-3"),
        ("-12.50", "-125e-1"),
        ("1e" + "9" * 5000, "0.1e1" + "0" * 5000),
        ("1e-1" + "0" * 5000, "10e-1" + "0" * 4999 + "1"),
        ("1e" + "0" * 5000 + "3", "1000"),
        ('{"a":1.0,"b":[2]}', '{"b":[2.0],"a":1}'),
        ('"\\u00e9"', '"é"'),
    ],
)
def test_equal_values_are_equal(a, b):
    assert equal(parse(a.encode()), parse(b.encode()))
    assert equal(parse(b.encode()), parse(a.encode()))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("true", "1"),
        ("false", "0"),
        ("null", "false"),
        ("1", '"1"'),
        ("1", "-1"),
        ("0.1000000000000000055", "0.1"),
        ("9223372036854775808", "9223372036854775809"),
        ("1e400", "1e401"),
        ("1e" + "9" * 5000, "1e" + "9" * 4999),
        ("1e" + "9" * 5000, "1e-" + "9" * 5000),
        ('"e\\u0301"', '"é"'),
        ("[1,2]", "[2,1]"),
        ("[]", "{}"),
        ("[1]", "[1,1]"),
        ('{"a":1}', '{"a":1,"b":1}'),
        ('{"a":null}', '{"b":null}'),
        ('{"a":[{"b":1}]}', '{"a":[{"b":2}]}'),
    ],
)
def test_different_values_are_not_equal(a, b):
    assert not equal(parse(a.encode()), parse(b.encode()))
    assert not equal(parse(b.encode()), parse(a.encode()))


@pytest.mark.parametrize("exponent", ["9" * 1_000_000, "-1" + "0" * 1_000_000])
def test_an_exponent_of_a_million_digits_is_compared_too(exponent):
    assert equal(Number(f"1e{exponent}"), Number(f"1.0e{exponent}"))
    assert not equal(Number(f"1e{exponent}"), Number(f"10e{exponent}"))


@given(numbers, numbers)
@example(Number("1.0e1"), Number("10"))
def test_numbers_are_equal_as_exact_fractions_are(a, b):
    assert equal(a, b) == (Fraction(str(a)) == Fraction(str(b)))


@given(values)
def test_the_canonical_form_is_read_as_the_same_value_and_written_again_as_it_was(value):
    text = canonical(value)
    again = parse(text)
    assert again == value
    assert equal(again, value)
    assert canonical(again) == text
    assert json.loads(text, parse_int=Number, parse_float=Number) == value


@given(values, st.integers(0, 3))
def test_the_form_does_not_depend_on_the_order_of_names_or_on_spaces(value, indent):
    plain = json.loads(canonical(value))
    turned = json.dumps(reverse(plain), indent=indent or None)
    assert rewritten(turned) == rewritten(json.dumps(plain, ensure_ascii=False))


def reverse(value):
    if isinstance(value, dict):
        return {name: reverse(part) for name, part in reversed(value.items())}
    return [reverse(part) for part in value] if isinstance(value, list) else value


@given(st.binary(max_size=40) | st.text('[]{}",:\\u0d8ef1 ', max_size=40).map(str.encode))
def test_what_is_read_is_what_json_reads_too(text):
    """`json` is the laxer reader: all that is read here it reads, as the same value."""
    try:
        value = parse(text)
    except NotJson:
        return
    assert json.loads(text, parse_int=Number, parse_float=Number) == value
