"""Kubernetes quantities: every suffix, exponents, bounds and the way back."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamipy.core.quantity import MAX, format_bytes, format_size, parse, parse_int
from tests.unit.core.budget import examples

DECIMAL = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
UNITS = {s: Fraction(10) ** power for s, power in DECIMAL.items()} | {s: Fraction(2**p) for s, p in BINARY.items()}


@pytest.mark.parametrize("suffix", UNITS)
def test_every_suffix_has_its_value(suffix: str) -> None:
    assert Fraction(parse(f"3{suffix}")) == 3 * UNITS[suffix]
    assert Fraction(parse(f"1.5{suffix}")) == Fraction(3, 2) * UNITS[suffix]
    assert Fraction(parse(f"-2{suffix}")) == -2 * UNITS[suffix]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("+5", 5),
        ("-5", -5),
        ("8Gi", 8 * 2**30),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", None),
        ("1.5k", 1500),
        (".5Ki", 512),
        ("5.", 5),
        ("5000m", 5),
        ("1500m", None),
        ("0.5", None),
        ("1.00000000000000000000000000000000000000001", None),
        ("9223372036854775807", MAX),
        ("9223372036854775808", None),
        ("-9223372036854775808", None),
        ("8Ei", None),
        ("7Ei", 7 * 2**60),
        ("1e99", None),
        (7, 7),
    ],
)
def test_whole_numbers_are_read_exactly_and_others_refused(text: str | int, value: int | None) -> None:
    if value is None:
        with pytest.raises(ValueError, match=r"not a whole number|beyond 64 bits"):
            parse_int(text)
    else:
        assert parse_int(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", ".", "Gi", "8GB", "8gi", "8 Gi", "8Gi8", "eight", "1e", "1e1000", "0x10", "1_000", "1,5", "NaN",
     "Infinity", "٣", "1KI", "1K", "--1", "1" * 65],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity such as 3, 500m or 8Gi"):
        parse(text)


@examples(300)
@given(st.integers(-MAX, MAX), st.integers(0, 6))
def test_bytes_come_back_as_they_were(count: int, power: int) -> None:
    for value in (count, count >> (10 * power) << (10 * power)):
        if abs(value) <= MAX:
            assert parse_int(format_bytes(value)) == value


@examples(300)
@given(st.from_regex(r"[+-]?[0-9]{1,25}(\.[0-9]{0,20})?", fullmatch=True), st.sampled_from(sorted(UNITS)))
def test_any_number_with_any_suffix_is_exact(number: str, suffix: str) -> None:
    assert Fraction(parse(number + suffix)) == Fraction(number.rstrip(".")) * UNITS[suffix]


@pytest.mark.parametrize(
    ("count", "exact", "size"),
    [
        (0, "0", "0"),
        (1000, "1000", "1000"),
        (1024, "1Ki", "1Ki"),
        (8 * 2**30, "8Gi", "8Gi"),
        (14 * 2**30, "14Gi", "14Gi"),
        (3 * 2**29, "1536Mi", "1.5Gi"),
        (2**31 - 1, "2147483647", "1.99Gi"),
        (100 * 2**30, "100Gi", "100Gi"),
        (5 * 2**30 + 2**28, "5376Mi", "5.25Gi"),
    ],
)
def test_bytes_are_shown_exactly_or_rounded_down_for_a_person(count: int, exact: str, size: str) -> None:
    assert format_bytes(count) == exact
    assert format_size(count) == size


@examples(300)
@given(st.integers(0, 2**60))
def test_a_size_for_a_person_is_never_more_than_it_is_and_close(count: int) -> None:
    shown = Fraction(parse(format_size(count)))
    assert shown <= count
    assert count - shown <= Fraction(count, 100)
