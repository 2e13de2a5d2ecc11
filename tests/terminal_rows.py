"""What a terminal shows of the text that rich wrote to it."""

import re


def shown_rows(text: str) -> list[str]:
    """What rich's line feeds, cursor movements and erasures leave of a text."""
    rows, row = [""], 0
    for token in re.findall(r"\x1b\[[?0-9;]*[a-zA-Z]|\n|\r|[^\x1b\n\r]+", text):
        if token == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif token == "\x1b[2K":
            rows[row] = ""
        elif token.endswith("A"):
            row -= int(token[2:-1])
        elif not token.startswith("\x1b") and token != "\r":
            rows[row] += token
    while rows and not rows[-1]:
        rows.pop()
    return rows
