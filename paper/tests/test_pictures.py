"""The pictures of the documentation follow from the rows."""

from paper import pictures


def test_pictures_are_up_to_date(tmp_path):
    made = pictures.write(tmp_path)
    assert {path.name for path in made} == {path.name for path in pictures.ASSETS.iterdir()}
    for path in made:
        shown = pictures.ASSETS / path.name
        assert path.read_text("utf-8") == shown.read_text("utf-8"), "run `make results`"
