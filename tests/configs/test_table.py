"""The text table: where its columns stand, and how numbers are written."""

from configs.table import table


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    rows = [["a", 1.0, "x1", 1234567.8], ["bcd", 12.5, "2", -0.000123]]
    assert table(rows, ["name", "n", "mixed", "wide number"]).splitlines() == [
        "name     n  mixed  wide number",
        "a        1  x1       1,234,568",
        "bcd   12.5  2        -0.000123",
    ]


def test_numbers_from_a_thousand_on_have_no_decimals() -> None:
    rows = [[999.96], [1000.0], [-1234.5], [-999.4], [0.00012346]]
    assert [line.strip() for line in table(rows, ["n"]).splitlines()] == [
        "n", "1,000", "1,000", "-1,234", "-999.4", "0.0001235",
    ]  # fmt: skip
