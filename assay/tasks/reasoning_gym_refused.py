"""Families of reasoning-gym 0.1.25 whose scorer must not, or cannot, be trained on; each was tried.

They run with task.options.unsafe_scorer = true. `assay tasks` shows the reasons.
"""

from __future__ import annotations

_EVALUATES = "its scorer runs Python's eval on the model's text: an answer can execute anything"
_PARSES = (
    "its scorer hands the model's text to sympy's parse_expr, which evaluates it: an answer can execute code or stall"
)
_NO_ANSWER = "its own answer is empty and scores 0"
_JUNK_BEHIND = "its scorer gives full marks to the right answer with anything behind it"
_OTHER_QUESTION = "the same seed gives another question in another process, so a worker would score another question"

REFUSED = {
    "binary_matrix": _EVALUATES,
    "n_queens": _EVALUATES,
    "spiral_matrix": _EVALUATES,
    "string_insertion": _EVALUATES,
    "countdown": _PARSES,
    "puzzle24": _PARSES,
    "simple_integration": _PARSES,
    "intermediate_integration": _PARSES,
    "polynomial_multiplication": f"{_PARSES}; and {_OTHER_QUESTION}",
    "game_of_life_halting": "its scorer gives full marks to any text",
    "coin_flip": 'its scorer gives full marks to "0" for nearly every question',
    "complex_arithmetic": 'its scorer gives full marks to "nan"',
    "letter_jumble": _JUNK_BEHIND,
    "sokoban": _JUNK_BEHIND,
    "spell_backward": f"{_JUNK_BEHIND}, and sometimes more than for the right answer alone",
    "word_sorting": _JUNK_BEHIND,
    "boxnet": f"{_NO_ANSWER}; its scorer raises on a number",
    "graph_color": _NO_ANSWER,
    "propositional_logic": _NO_ANSWER,
    "rubiks_cube": _NO_ANSWER,
    "rush_hour": _NO_ANSWER,
    "prime_factorization": "its scorer raises on every answer that is not all numbers: most would fail to be scored",
    "isomorphic_strings": _OTHER_QUESTION,
    "ransom_note": _OTHER_QUESTION,
    "codeio": f"of some problems {_OTHER_QUESTION}",
}
