"""The bar of a download: on a terminal it is drawn, elsewhere it leaves no trace."""

from eattn.data.download import fetch
from eattn.data.progress import bar


def test_a_terminal_shows_how_far_it_is(site, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    site.content = bytes(1_000_000)
    with bar("Toy", shown=True) as report:
        fetch(site.url, tmp_path / "toy", report=report)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Toy" in err
    assert "1.0/1.0 MB" in err


def test_elsewhere_nothing_is_written(site, tmp_path, capsys, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for shown in (True, False):
        with bar("Toy", shown=shown) as report:
            fetch(site.url, tmp_path / "toy", report=report)
    assert capsys.readouterr() == ("", "")
