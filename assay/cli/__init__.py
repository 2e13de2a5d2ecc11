"""The command line: parsing only. Each verb calls one function; heavy imports wait until a verb needs them."""

from assay.cli.app import app
from assay.cli.training import train

# isort: split
from assay.cli.diagnosis import FailOn, Format  # its verbs stand after those that train

# isort: split
from assay.cli import reporting as reporting

__all__ = ["FailOn", "Format", "app", "train"]
