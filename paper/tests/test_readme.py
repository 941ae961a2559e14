"""README.md shows what the rows say."""

import pytest

from paper import readme


def test_readme_table_follows_from_the_rows():
    text = readme.README.read_text(encoding="utf-8")
    assert readme.filled(text) == text, "run `make results`"


def test_readme_without_the_region_is_refused():
    with pytest.raises(ValueError, match="comparison"):
        readme.filled("# eattn")


def test_readme_is_short():
    text = readme.README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert len(text.split()) <= 2000
