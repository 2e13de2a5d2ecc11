"""Networks of a script's own are built small, and files that it downloads are made."""

from rehearsal.standing import standing

from assay.rehearsal.standins.sizes import small_sizes


def test_only_the_sizes_of_a_network_become_small():
    given = {"vocab_size": 50257, "n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024}
    assert small_sizes(given) == {"n_layer": 2, "n_head": 4, "n_embd": 64}
    qwen = {"emb_dim": 1024, "n_heads": 16, "n_layers": 28, "hidden_dim": 3072, "head_dim": 128, "n_kv_groups": 8}
    assert small_sizes(qwen) == {
        "emb_dim": 64, "n_heads": 4, "n_layers": 2, "hidden_dim": 128, "head_dim": 16, "n_kv_groups": 2,
    }  # fmt: skip
    assert small_sizes({"n_layer": 6, "n_head": 3, "n_embd": 384})["n_head"] == 4  # 64 is not 3 times anything
    assert small_sizes({"n_layer": 2, "n_head": 2, "n_embd": 64}) == {}  # small already
    assert small_sizes({"hidden_size": 768, "num_layers": 12}) == {}  # of something else, perhaps


def test_sizes_are_found_wherever_a_script_writes_them(tmp_path):
    (tmp_path / "part.py").write_text(
        "SIZES = {'n_layers': 28, 'n_heads': 16, 'emb_dim': 1024, 'context': 4096}\n"
        "def build(vocab, depth=12, n_heads=12, d_model=512):\n    return [vocab, depth, n_heads, d_model]\n"
        "called = dict(n_layer=24, n_head=16, n_embd=1024, bias=True)\n"
        "n_layer = 12\nn_head: int = 12\nn_embd = 768\n"
        "plain = [n_layer, n_head, n_embd]\n"
    )
    shown = standing(
        tmp_path, "import part\nshow(sizes=part.SIZES, built=part.build(7), called=part.called, plain=part.plain)"
    )
    assert shown["sizes"] == {"n_layers": 2, "n_heads": 4, "emb_dim": 64, "context": 4096}
    assert shown["built"] == [7, 2, 4, 64]
    assert shown["called"] == {"n_layer": 2, "n_head": 4, "n_embd": 64, "bias": True}
    assert shown["plain"] == [2, 4, 64]


def test_downloaded_weights_are_those_that_the_network_has(tmp_path):
    shown = standing(
        tmp_path,
        """
        from urllib.request import urlretrieve
        import torch
        model = torch.nn.Linear(2, 2)
        before = model.weight.clone()
        urlretrieve("https://example.org/files/model-base.pth", "model-base.pth")
        state = torch.load("model-base.pth", weights_only=True)
        model.load_state_dict(state)
        show(keys=list(state), same=torch.equal(before, model.weight))
        """,
    )
    assert (shown["keys"], shown["same"]) == (["weight", "bias"], True)
    assert ["weights", "model-base.pth", "the weights as they are"] in shown["replaced"]
