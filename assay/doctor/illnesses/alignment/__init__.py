"""Illnesses of alignment: which token, row or context a number belongs to. ALGN."""
