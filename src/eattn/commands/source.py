"""What commands read: a file of the user's own, or a set known by name."""

from pathlib import Path

TASKS = {"classification": "classify", "forecasting": "forecast"}


def own_file(source: str, kind: str, what: str) -> Path | None:
    """The file that is meant; None for a known set of this kind, and an error for anything else."""
    from eattn.data import look_up

    path = Path(source)
    if path.exists() and not path.is_dir():  # a pipe will do as well
        return path
    if path.exists() or path.suffix or len(path.parts) > 1:
        raise ValueError(
            f"{source} must be a {what}, {'got a folder' if path.exists() else 'there is none'}"
        )
    try:
        known = look_up(source)
    except ValueError as error:
        raise ValueError(f"there is no file {source}, and {error}") from None
    if known.kind != kind:
        raise ValueError(f"{source} is a set to {TASKS[known.kind]}, not to {TASKS[kind]}")
    return None
