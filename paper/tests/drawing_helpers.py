"""Whether a picture can be read: no text too small, outside of the frame, or on another."""

from itertools import combinations

import pytest
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from paper.report import plots


def check_texts(picture: Figure, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is drawn, in the end."""
    boxes: dict[Text, Bbox] = {}
    draw = Text.draw

    def record(text: Text, renderer: RendererBase) -> None:
        draw(text, renderer)
        if text.get_visible() and text.get_text().strip():
            boxes[text] = text.get_window_extent(renderer)

    plots.settle(picture)
    monkeypatch.setattr(Text, "draw", record)
    FigureCanvasAgg(picture).draw()
    assert min(text.get_fontsize() for text in boxes) >= 8
    frame = picture.bbox.padded(1)
    for text, box in boxes.items():
        assert frame.contains(box.x0, box.y0), text
        assert frame.contains(box.x1, box.y1), text
    for (text, box), (other, there) in combinations(boxes.items(), 2):
        assert not box.padded(-1).overlaps(there.padded(-1)), (text, other)
    return [text.get_text() for text in boxes]
