"""Documents that are quick to learn, and options of a tiny language model."""

from typing import Any

from eattn.data.text import Document, Text, split

TINY: dict[str, Any] = dict(
    hidden=16, layers=1, length=32, batch_tokens=128, steps=12, evaluations=3, lr=1e-2
)
WORDS = ("the cat", "sat on", "a mat", "ünd sah", "€ 5", "to the dog")


def documents(count: int = 24) -> list[Document]:
    """Return sentences of a few words in different orders."""
    made = []
    for n in range(count):
        words = [WORDS[(n * k + k * k) % len(WORDS)] for k in range(8 + n % 5)]
        made.append(Document(f"{n:02}.txt", f"{n}: {' '.join(words)}.\n".encode()))
    return made


def text() -> Text:
    return split(documents(), share=0.2)
