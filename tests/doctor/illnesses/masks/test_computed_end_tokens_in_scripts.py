"""End and padding tokens that a script computes: the masks made with them are followed all the same."""

import re

import pytest
from doctor.illnesses.read_script import codes_in
from doctor.illnesses.small_trainer import TRAINER, trainer

GIVEN = 'CHARS = "0123456789+= "\nEOS = len(CHARS)\nPAD = EOS + 1\nVOCAB = PAD + 1\n'
TOKENS = 'CHARS = list("0123456789+= ") + ["<eos>", "<pad>"]\nvocab = {c: i for i, c in enumerate(CHARS)}\n'
COMPUTED = {
    "the length of a text": (GIVEN, "EOS", "PAD"),
    "two at once": (
        'CHARS = list("0123456789+= ")\nEOS, PAD = len(CHARS), len(CHARS) + 1\nVOCAB = PAD + 1\n',
        "EOS",
        "PAD",
    ),
    "from the end": ('CHARS = "0123456789+= "\nVOCAB = 15\nEOS = VOCAB - 2\nPAD = VOCAB - 1\n', "EOS", "PAD"),
    "looked up": (TOKENS + 'EOS, PAD = vocab["<eos>"], vocab["<pad>"]\nVOCAB = len(vocab)\n', "EOS", "PAD"),
    "looked up where it is used": (TOKENS + "VOCAB = len(vocab)\n", 'vocab["<eos>"]', 'vocab["<pad>"]'),
    "its place": (
        TOKENS + 'EOS = CHARS.index("<eos>")\nPAD = CHARS.index("<pad>")\nVOCAB = len(CHARS)\n',
        "EOS",
        "PAD",
    ),
    "added to a dictionary": (
        'CHARS = "0123456789+= "\nvocab = dict(zip(CHARS, range(len(CHARS))))\nvocab["<eos>"] = len(vocab)\n'
        'vocab["<pad>"] = len(vocab)\nEOS, PAD = vocab["<eos>"], vocab["<pad>"]\nVOCAB = len(vocab)\n',
        "EOS",
        "PAD",
    ),
    "of a class": (
        'CHARS = "0123456789+= "\nclass Codec:\n    eos = len(CHARS)\n    pad = len(CHARS) + 1\n'
        "VOCAB = Codec.pad + 1\n",
        "Codec.eos",
        "Codec.pad",
    ),
    "of an object": (
        'CHARS = "0123456789+= "\nclass Codec:\n    def __init__(self, chars):\n        self.eos_id = len(chars)\n'
        "        self.pad_id = self.eos_id + 1\ncodec = Codec(CHARS)\nVOCAB = codec.pad_id + 1\n",
        "codec.eos_id",
        "codec.pad_id",
    ),
    "above the largest": (
        'CHARS = "0123456789+= "\nEOS = max(range(len(CHARS))) + 1\nPAD = EOS + 1\nVOCAB = PAD + 1\n',
        "EOS",
        "PAD",
    ),
}
ENDS = "ends = (completions == EOS).long()\n"
MASKS = {
    "up to the end": (ENDS + "mask = ((ends.cumsum(1) - ends) == 0).float()", set()),
    "all but padding": ("mask = (completions != PAD).float()", set()),
    "before the end": (ENDS + "mask = (ends.cumsum(1) == 0).float()", {"MASK01"}),
    "neither end nor padding": ("mask = ((completions != EOS) & (completions != PAD)).float()", {"MASK01"}),
    "everything": ("mask = torch.ones_like(completions).float()", {"MASK02"}),
    "everything, by a count": (ENDS + "mask = (ends.cumsum(1) >= 0).float()", {"MASK02"}),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", COMPUTED)
def test_a_mask_is_judged_whatever_its_end_token_was_computed_from(form, mask, tmp_path):
    definition, end, pad = COMPUTED[form]
    lines, codes = MASKS[mask]
    assert TRAINER.count(GIVEN) == 1
    head, tail = trainer(None, lines).split(GIVEN)
    tail = re.sub(r"\bPAD\b", pad, re.sub(r"\bEOS\b", end, tail))
    assert codes_in(head + definition + tail, tmp_path, ("MASK01", "MASK02")) == codes
