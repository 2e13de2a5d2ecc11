"""Evidence of each illness of the catalogue, whatever kind it is found in."""

from assay.doctor.catalogue import catalogue
from assay.doctor.evidence import Evidence
from assay.programs.read.script import read_program


def of_all(folder):
    """Pairs of an illness and evidence with it: recorded, and of its sick script."""
    for illness in catalogue():
        if illness.sick is not None:
            yield illness, illness.sick()
        if illness.scripts is not None:
            path = folder / f"{illness.name}.py"
            path.write_text(illness.scripts.sick)
            yield illness, Evidence(programs=(read_program(path),))
