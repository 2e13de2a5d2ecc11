import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.policy import embedded
from assay.tasks.sort_digits import ALPHABET


def test_the_tokenizer_has_one_token_a_character_and_gives_back_what_it_was_given():
    words = embedded.tokenizer()
    ids = words.encode("9071>", add_special_tokens=False)
    assert len(ids) == 5
    assert words.decode(ids, skip_special_tokens=True) == "9071>"
    assert len(words) == len(ALPHABET) + 2


def test_the_directory_is_an_ordinary_hugging_face_model_and_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    steps = []
    directory = embedded.embedded_directory(2, lambda done, total: steps.append((done, total)))
    assert steps == [(1, 2), (2, 2)]
    assert embedded.embedded_directory(2, lambda done, total: steps.append((done, total))) == directory
    assert len(steps) == 2
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert sum(weight.numel() for weight in model.parameters()) < 1_000_000
    assert AutoTokenizer.from_pretrained(directory).eos_token_id == model.config.eos_token_id
    assert [path.name for path in (tmp_path / "assay").iterdir()] == [directory.name]


def test_making_it_again_gives_the_same_bits_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first = embedded.warm_start(2, lambda done, total: None).state_dict()
    torch.rand(5)
    state = torch.get_rng_state()
    second = embedded.warm_start(2, lambda done, total: None).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(before, state)


def test_more_lessons_teach_more():
    def loss(model):
        ids_BL, labels_BL = embedded._lesson(embedded.tokenizer(), embedded.lesson_task(), step=10_000)
        with torch.no_grad():
            return float(model(ids_BL, labels=labels_BL).loss)

    assert (
        loss(embedded.warm_start(12, lambda done, total: None)) < loss(embedded.warm_start(1, lambda d, t: None)) - 0.2
    )
