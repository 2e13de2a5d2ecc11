"""Which text each token is."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from assay import config as configuration
from assay.report.pieces import Pieces, TokenizerError, pieces_of


@pytest.fixture
def byte_tokenizer(tmp_path):
    """Every byte is a token: a character of several bytes is several tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_tokenizer_beside_the_run_gives_the_texts(byte_tokenizer, tmp_path):
    run = tmp_path / "run"
    (run / "final").mkdir(parents=True)
    (byte_tokenizer / "tokenizer.json").rename(run / "final" / "tokenizer.json")
    pieces = pieces_of(run, None)
    ids = Tokenizer.from_file(str(run / "final" / "tokenizer.json")).encode("ab c").ids
    assert pieces.of(ids, None) == ["a", "b", " ", "c"]
    assert pieces.source == "final/tokenizer.json"


def test_a_character_of_several_tokens_stands_at_the_last_of_them(byte_tokenizer):
    pieces = pieces_of(byte_tokenizer / "run", None, byte_tokenizer)
    ids = Tokenizer.from_file(str(byte_tokenizer / "tokenizer.json")).encode("a\u20acb").ids
    assert pieces.of(ids, None) == ["a", "", "", "\u20ac", "b"]


def test_an_id_that_the_tokenizer_does_not_have_is_shown_as_an_id(byte_tokenizer):
    pieces = pieces_of(byte_tokenizer / "run", None, byte_tokenizer)
    assert pieces.of([99999, 0], None)[0] == "[99999]"


def test_pieces_that_cannot_be_seen_are_escaped(byte_tokenizer):
    pieces = pieces_of(byte_tokenizer / "run", None, byte_tokenizer)
    ids = Tokenizer.from_file(str(byte_tokenizer / "tokenizer.json")).encode("\x00\u202e").ids
    assert pieces.of(ids, None) == ["\\x00", "", "", "\\u202e"]


@pytest.mark.parametrize(
    ("ids", "text", "shown"),
    [
        ([3, 4], "ab", ["a", "b"]),
        ([3, 4, 1], "ab", ["a", "b", "[end]"]),
        ([3, 4, 5], "ab", ["a", "b", "[5]"]),
        ([3, 4], "a long text", ["[3]", "[4]"]),
        ([3, 1], None, ["[3]", "[end]"]),
    ],
)
def test_without_a_tokenizer_a_text_is_cut_only_if_it_has_a_character_per_token(ids, text, shown):
    assert Pieces().of(ids, text, {1}) == shown


@pytest.mark.parametrize("damaged", ["", "{}", '{"model": 3}', "\x00\x01"])
def test_a_damaged_tokenizer_is_passed_over_where_it_was_found_and_refused_where_it_was_named(tmp_path, damaged):
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "tokenizer.json").write_text(damaged)
    assert not pieces_of(tmp_path, None).knows_texts
    with pytest.raises(TokenizerError, match="not a tokenizer"):
        pieces_of(tmp_path, None, tmp_path / "final")


def test_the_tokenizer_of_the_model_is_found_while_the_run_goes_on(byte_tokenizer, tmp_path):
    config = configuration.load(None, [f"model.path={byte_tokenizer}"])
    assert pieces_of(tmp_path / "run", config).knows_texts
