"""What can go wrong with a backup."""

DAMAGED = "BACKUP_DAMAGED"
NO_BACKUP = "NO_BACKUP"
BUSY = "TARGET_BUSY"
KEY = "BACKUP_KEY"
TARGET = "TARGET_FAILED"
FORMAT = "BACKUP_FORMAT"
NOT_TAKEN = "BACKUP_NOT_TAKEN"
MISSING_EXTRA = "MISSING_EXTRA"


class BackupError(Exception):
    """One sentence, a word for programs, and what to do if there is something."""

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.hint = hint
