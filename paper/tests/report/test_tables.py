from paper.report.tables import Mean, table


def test_a_mean_knows_its_spread_and_seeds():
    assert Mean.of([1.0, 2.0, 3.0]) == (2.0, 1.0, 3)
    assert Mean.of([4.0]) == (4.0, 0.0, 1)  # one seed has no spread


def test_a_table_is_markdown():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
