"""One 256-bit secret a run; every input follows from it, and no input tells anything of it."""

import hashlib
import os

from harness.problems.shapes import number_of


class Secret:
    """In the judge's memory only. `commitment` is published before the run, the secret after."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or os.urandom(32)

    @property
    def commitment(self) -> str:
        """SHA-256 of the secret."""
        return hashlib.sha256(self._key).hexdigest()

    def reveal(self) -> str:
        """The secret itself, for the record, once no burst will follow."""
        return self._key.hex()

    def seed(self, label: str) -> int:
        """63 bits for a generator."""
        return number_of(self._key, label)
