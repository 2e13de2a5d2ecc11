"""Text on its way into a record: model output is hostile, and error messages may quote a secret."""

from __future__ import annotations

from assay.machine.secrets import redact, secrets, without_secrets

__all__ = ["encodable", "redact", "secrets", "without_secrets"]


def encodable(text: str) -> str:
    r"""Text that every UTF-8 reader accepts: a lone surrogate becomes its escape, everything else stays, NUL included.

    >>> encodable("a\ud800b")
    'a\\ud800b'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
