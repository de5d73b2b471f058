"""A recorder of the notes and failed rows of a pack."""

from flarecli.progress import Progress


class NoteCollector(Progress):
    """Collects notes that are shown without --verbose, and (key, reason) of failed rows."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.failures: list[tuple[str, str]] = []

    def note(self, text: str, verbose: bool = False) -> None:
        if not verbose:
            self.notes.append(text)

    def failed(self, key: str, reason: str, rows: int = 1) -> None:
        self.failures.append((key, reason))
