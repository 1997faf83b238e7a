import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.bandwidth import parse_bandwidth, written_bandwidth
from prime_p2p.errors import BadInput


@pytest.mark.parametrize(
    ("text", "mbit"),
    [
        ("100", 100),
        ("500Mbit", 500),
        ("500 mbit/s", 500),
        ("4Gbit", 4000),
        ("2.5Gbit/s", 2500),
        (".5", 0.5),
        ("64kbit", 0.064),
        (" 10 ", 10),
        ("1000000Gbit", 1e9),
    ],
)
def test_a_bandwidth_is_read_as_people_write_it(text: str, mbit: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(mbit)


@pytest.mark.parametrize("text", ["", "fast", "500MB", "4Tbit", "-1", "1e3", "nan", "inf", "5 5", "Mbit", "1..2"])
def test_what_is_no_bandwidth_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--bandwidth .*: must be a number of Mbit/s, or .* as in 500Mbit or 4Gbit$"):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["0", "0Gbit", "1000001Gbit"])
def test_a_bandwidth_out_of_range_is_refused_by_the_name_it_was_given_as(text: str) -> None:
    with pytest.raises(BadInput, match=r"^limit '.*': must be above 0, and at most 1e9 Mbit/s$"):
        parse_bandwidth(text, "limit")


@given(st.text("0159.kKmMgGbBit/s\n -", max_size=12))
def test_any_text_is_a_bandwidth_or_one_line(text: str) -> None:
    outcome = "a bandwidth"
    try:
        assert parse_bandwidth(text) > 0
    except BadInput as error:
        outcome = str(error)
    assert len(outcome.splitlines()) == 1


@given(st.floats(min_value=1e-3, max_value=1e8))
def test_a_written_bandwidth_is_read_again_to_three_digits(mbit: float) -> None:
    assert parse_bandwidth(written_bandwidth(mbit)) == pytest.approx(mbit, rel=0.006)
