"""Faults and sound oddities written by people who had not read the doctor's checks: only the names of the laws.

    specimens/DOOR/aNN.py   what is run; labels.jsonl says what is wrong with each, or why it is sound
    specimens2/DOOR/aNN.py  the second round
    run.py                  runs specimens and keeps what the doctor said
    judged.jsonl            of each specimen, whether the first finding names what was planted
    table.py                both --> docs/proof-blind.md

Those of the second round were not looked at while the doctor was fixed: their figures count.
"""
