"""Checkpoints of a script's own format that are missing, and values of modules that are not installed."""

from rehearsal.standing import standing


def test_a_missing_checkpoint_has_the_weights_of_the_network_that_loads_it(tmp_path):
    shown = standing(
        tmp_path,
        """
        import torch
        from torch import nn

        class Adapted(nn.Module):
            def __init__(self):
                super().__init__()
                self.base = nn.Linear(2, 2, bias=False)
                self.lora_a = nn.Linear(2, 1, bias=False)

        def load_all(model, path):
            state = torch.load(path)
            stripped = {key.removeprefix("module."): value for key, value in state["model"].items()}
            loaded = model.load_state_dict(stripped, strict=True)
            return sorted(stripped), list(loaded.missing_keys)

        def load_adapter(model, path):
            state = torch.load(path)
            parts = {name for name, _ in model.named_modules() if "lora" in name}
            same = torch.equal(state["lora_a.weight"], model.lora_a.weight)
            return sorted(set(state) ^ {f"{name}.weight" for name in parts}), same

        def load_settings(model, path):
            return dict(**torch.load(path)["model_args"])

        def load_two(first, second, path):
            return list(torch.load(path))

        model = Adapted()
        show(settings=load_settings(model, "policy.pt"), all=load_all(model, "policy.pt"),
             adapter=load_adapter(model, "lora.pt"),
             two=load_two(model, nn.Linear(1, 1), "policy.pt"), none=[key for key in (lambda: torch.load("a.pt"))()],
             rank=torch.load("policy.pt")["rank"])
        """,
    )
    assert shown["all"] == [["base.weight", "lora_a.weight"], []]
    assert shown["adapter"] == [[], True]  # a file of an adapter has nothing else
    assert shown["settings"] == {}  # the class's own defaults
    assert shown["two"] == []  # whose weights it would have is not known
    assert shown["none"] == ["base.weight", "lora_a.weight"]  # the script's own `model`
    assert shown["rank"] == 8


def test_an_inert_value_is_taken_apart_into_as_many_as_the_script_wants(tmp_path):
    shown = standing(
        tmp_path,
        """
        from absent_games import make
        env = make("guess")
        seen, reward, is_over, _, info = env.step("3")
        first, *rest, last = env.reset()
        show(text="a" + seen + "b", joined=[1] + info, reward=1 + reward, over=bool(is_over), rest=rest,
             looped=[part for part in env.history()])
        """,
    )
    assert (shown["reward"], shown["over"], shown["rest"], shown["looped"]) == (1.0, False, [], [])
    assert (shown["text"], shown["joined"]) == ("ab", [1])
    assert any(kind == "data" and "step" in what for kind, what, _ in shown["replaced"])
