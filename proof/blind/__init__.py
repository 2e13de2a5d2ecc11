"""Faults and sound oddities written by people who had not read the doctor's checks: only the names of the laws.

    specimens/DOOR/aNN.py   what is run; labels.jsonl says what is wrong with each, or why it is sound
    run.py                  runs specimens and keeps what the doctor said
    judged.jsonl            of each specimen, whether the first finding names what was planted
    table.py                both --> docs/proof-blind.md

Specimens with even numbers were not looked at while the doctor was fixed: their figures count.
"""
