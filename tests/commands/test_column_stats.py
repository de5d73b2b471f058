"""The table of column statistics."""

from flarecli.commands import stats_table


def test_the_table_has_the_statistics_of_each_column():
    names, rows = stats_table(
        {
            "id": {"rows": 12_000, "nulls": 3, "min": 0, "max": 10**60, "distinct_over": 10_000},
            "score": {
                "rows": 2,
                "nulls": 0,
                "min": -1.98171720525,
                "max": float("inf"),
                "distinct": 2,
            },
            "text": {
                "rows": 2,
                "nulls": 0,
                "min_bytes": 2,
                "max_bytes": 5000,
                "min_chars": 1,
                "max_chars": 2500,
                "bytes": 5002,
                "distinct": 2,
            },
            "words": {"rows": 2, "nulls": 0, "min_items": 0, "max_items": 7},
            "image": {
                "rows": 2,
                "nulls": 0,
                "min_bytes": 9,
                "max_bytes": 99,
                "bytes": 108,
                "pictures": 2,
                "smallest": "8x8",
                "median": "8x8",
                "largest": "9x9",
            },
        }
    )
    assert names == ["rows", "nulls", "distinct", "min", "max", "total bytes", "images"]
    assert rows == [
        ["12,000", "3", "over 10,000", "0", "1" + "0" * 38 + "…", "", ""],
        ["2", "0", "2", "-1.98172", "inf", "", ""],
        ["2", "0", "2", "1 char, 2 B", "2,500 chars, 5.0 kB", "5.0 kB", ""],
        ["2", "0", "", "0 items", "7 items", "", ""],
        ["2", "0", "", "9 B", "99 B", "108 B", "2 of 8x8 / 9x9"],
    ]


def test_empty_columns_of_the_table_are_omitted():
    assert stats_table({"id": {"rows": 0, "nulls": 0}}) == (["rows", "nulls"], [["0", "0"]])
    assert stats_table({}) == ([], [])
