"""Logs and rollouts that other trainers wrote --> Evidence. What is read, and by which sign, is in docs/logs.md.

Curves of others are by their names (names.py) and say little of settings: what is concluded from them stays possible.
"""

from assay.doctor.evidence.logs.files import KINDS, read_file
from assay.doctor.evidence.logs.folders import holds_logs, read_folder
from assay.doctor.evidence.logs.series import LogError

__all__ = ["KINDS", "LogError", "holds_logs", "read_file", "read_folder"]
